import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { Connection } from './connection'

beforeEach(() => void vi.useFakeTimers())
afterEach(() => void vi.useRealTimers())

/** A connection whose probes have these results; the last one is repeated. */
function connection(...results: boolean[]) {
  const probe = vi.fn(() => Promise.resolve((results.length > 1 ? results.shift() : results[0]) ?? false))
  const made = new Connection(probe)
  const changes: boolean[] = []
  let restored = 0
  made.subscribe(() => changes.push(made.lost))
  made.onRestored(() => restored++)
  return { made, probe, changes, restored: () => restored }
}

it('one failed request is not a lost connection', async () => {
  const { made, changes, restored } = connection(true)
  made.suspect()
  await vi.advanceTimersByTimeAsync(60_000)
  expect([made.lost, changes, restored()]).toEqual([false, [], 0])
})

it('a lost connection is reported once and restored by itself', async () => {
  const { made, probe, changes, restored } = connection(false, false, false, true)
  for (let nth = 0; nth < 5; nth++) made.suspect()
  await vi.advanceTimersByTimeAsync(0)
  expect([made.lost, changes, probe.mock.calls.length]).toEqual([true, [true], 1])
  await vi.advanceTimersByTimeAsync(1_000 + 2_000)
  expect([made.lost, restored()]).toEqual([true, 0])
  await vi.advanceTimersByTimeAsync(4_000)
  expect([made.lost, changes, restored()]).toEqual([false, [true, false], 1])
  await vi.advanceTimersByTimeAsync(60_000)
  expect(probe.mock.calls.length).toBe(4)
})

it('pauses between checks are at most ten seconds, and end when the browser is online', async () => {
  const { made, probe } = connection(false)
  made.suspect()
  await vi.advanceTimersByTimeAsync(120_000)
  const before = probe.mock.calls.length
  await vi.advanceTimersByTimeAsync(10_000)
  expect(probe.mock.calls.length).toBe(before + 1)
  made.hurry()
  await vi.advanceTimersByTimeAsync(0)
  expect(probe.mock.calls.length).toBe(before + 2)
})
