import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { MAX_WAIT_MS, MIN_INTERVAL_MS, TypeAhead } from './typeAhead'

/** Interval of the repetitions of a held key. */
const REPEAT_MS = 33

let sent: string[]
let typeAhead: TypeAhead<string>

beforeEach(() => {
  vi.useFakeTimers()
  sent = []
  typeAhead = new TypeAhead((value) => sent.push(value))
})
afterEach(() => {
  vi.useRealTimers()
})

test('the first key after a pause is sent at once', () => {
  typeAhead.offer('k')
  expect(sent).toEqual(['k'])
  typeAhead.complete()
  vi.advanceTimersByTime(1_000)
  typeAhead.offer('ki')
  expect(sent).toEqual(['k', 'ki'])
})

test('while a request is in flight, the newest value waits for its end', () => {
  typeAhead.offer('k')
  vi.advanceTimersByTime(MIN_INTERVAL_MS)
  typeAhead.offer('ki')
  vi.advanceTimersByTime(MIN_INTERVAL_MS)
  typeAhead.offer('kin')
  expect(sent).toEqual(['k'])
  typeAhead.complete()
  expect(sent).toEqual(['k', 'kin'])
})

test('a request that takes long does not delay the newest value further', () => {
  typeAhead.offer('k')
  vi.advanceTimersByTime(MIN_INTERVAL_MS)
  typeAhead.offer('ki')
  vi.advanceTimersByTime(MAX_WAIT_MS - MIN_INTERVAL_MS - 1)
  expect(sent).toEqual(['k'])
  vi.advanceTimersByTime(1)
  expect(sent).toEqual(['k', 'ki'])
})

test.each([
  { name: 'immediate responses', responseMs: 0, mostRequests: 1_000 / MIN_INTERVAL_MS },
  { name: 'responses that never end', responseMs: undefined, mostRequests: 1_000 / MAX_WAIT_MS },
])('a held key starts fewer requests than it has repetitions: $name', ({ responseMs, mostRequests }) => {
  typeAhead = new TypeAhead((value) => {
    sent.push(value)
    if (responseMs !== undefined) setTimeout(() => typeAhead.complete(), responseMs)
  })
  const repetitions = Math.floor(1_000 / REPEAT_MS)
  for (let length = 1; length <= repetitions; length += 1) {
    typeAhead.offer('k'.repeat(length))
    vi.advanceTimersByTime(REPEAT_MS)
  }
  expect(sent.length).toBeGreaterThan(1)
  expect(sent.length).toBeLessThanOrEqual(mostRequests + 1)
  expect(sent.length).toBeLessThan(repetitions)
  // The value at the end is sent in any case.
  vi.advanceTimersByTime(MAX_WAIT_MS)
  expect(sent.at(-1)).toBe('k'.repeat(repetitions))
})

test('a cancelled value is not sent', () => {
  typeAhead.offer('k')
  typeAhead.offer('ki')
  typeAhead.cancel()
  typeAhead.complete()
  vi.advanceTimersByTime(1_000)
  expect(sent).toEqual(['k'])
})

test('nothing is sent when a request ends without a newer value', () => {
  typeAhead.offer('k')
  typeAhead.complete()
  typeAhead.complete()
  vi.advanceTimersByTime(1_000)
  expect(sent).toEqual(['k'])
})
