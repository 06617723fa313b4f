import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { Connection } from './connection'

beforeEach(() => void vi.useFakeTimers())
afterEach(() => void vi.useRealTimers())

/** A connection whose probes have these results; the last one is repeated. */
function createConnection(...results: boolean[]) {
  const probe = vi.fn(() => Promise.resolve((results.length > 1 ? results.shift() : results[0]) ?? false))
  const connection = new Connection(probe)
  const changes: boolean[] = []
  let restored = 0
  connection.subscribe(() => changes.push(connection.isLost))
  connection.onRestored(() => restored++)
  return { connection, probe, changes, restored: () => restored }
}

it('a failed request does not lose the connection if the server responds to the check', async () => {
  const { connection, changes, restored } = createConnection(true)
  connection.startChecking()
  await vi.advanceTimersByTimeAsync(60_000)
  expect([connection.isLost, changes, restored()]).toEqual([false, [], 0])
})

it('a lost connection is reported once, and restored when the server responds', async () => {
  const { connection, probe, changes, restored } = createConnection(false, false, false, true)
  for (let nth = 0; nth < 5; nth++) connection.startChecking()
  await vi.advanceTimersByTimeAsync(0)
  expect([connection.isLost, changes, probe.mock.calls.length]).toEqual([true, [true], 1])
  await vi.advanceTimersByTimeAsync(1_000 + 2_000)
  expect([connection.isLost, restored()]).toEqual([true, 0])
  await vi.advanceTimersByTimeAsync(4_000)
  expect([connection.isLost, changes, restored()]).toEqual([false, [true, false], 1])
  await vi.advanceTimersByTimeAsync(60_000)
  expect(probe.mock.calls.length).toBe(4)
})

it('retry delays are at most ten seconds, and end when the browser is online', async () => {
  const { connection, probe } = createConnection(false)
  connection.startChecking()
  await vi.advanceTimersByTimeAsync(120_000)
  const before = probe.mock.calls.length
  await vi.advanceTimersByTimeAsync(10_000)
  expect(probe.mock.calls.length).toBe(before + 1)
  connection.checkNow()
  await vi.advanceTimersByTimeAsync(0)
  expect(probe.mock.calls.length).toBe(before + 2)
})
