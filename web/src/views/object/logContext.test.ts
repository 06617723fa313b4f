import { expect, it } from 'vitest'
import { CONTEXT_LINES, contextKey, ContextWindow, matchingKeys, parseLineId } from './logContext'
import { lineIdOf } from './logBuffer'

const time = (second: number) => new Date(Date.UTC(2026, 0, 1) + second * 1_000).toISOString()
const line = (second: number) => ({ time: time(second), text: `line ${second}` })

/** Pushes lines until no further one is needed; returns their number. */
function fill(context: ContextWindow, seconds: number[]): number {
  const end = seconds.findIndex((second) => context.push(line(second)))
  return end < 0 ? seconds.length : end + 1
}

it('the lines before and after a line are kept, and no further ones are read', () => {
  const context = new ContextWindow(time(50))
  const all = Array.from({ length: 200 }, (_, second) => second)
  expect(fill(context, all)).toBe(51 + CONTEXT_LINES)
  expect([context.before[0]?.text, context.before.length, context.line?.text, context.after.at(-1)?.text]).toEqual(['line 30', CONTEXT_LINES, 'line 50', 'line 70'])
})

it('a log with fewer lines has all of them', () => {
  const context = new ContextWindow(time(1))
  fill(context, [0, 1, 2])
  expect([context.before, context.line, context.after]).toEqual([[line(0)], line(1), [line(2)]])
})

it('reading ends after the time of a line that the log does not have', () => {
  const context = new ContextWindow(time(5))
  expect(fill(context, [4, 6, 7])).toBe(2)
  expect(context.line).toBeUndefined()
})

it('times are compared with all their decimals', () => {
  const context = new ContextWindow('2026-01-01T00:00:05Z')
  expect(context.push({ time: '2026-01-01T00:00:05.000000000Z', text: 'a' })).toBe(false)
  expect(context.line?.text).toBe('a')
})

it.each([
  ['2026-01-01T00:00:05Z m1 shop web-0 web', { time: '2026-01-01T00:00:05Z', source: { cluster: 'm1', namespace: 'shop', pod: 'web-0', container: 'web' } }],
  [' m1 shop web-0 web', undefined],
  ['2026-01-01T00:00:05Z m1', undefined],
])('the identifier %j has %j', (lineId, expected) => expect(parseLineId(lineId)).toEqual(expected))

it('lines of the same log match', () => {
  const source = { cluster: 'm1', namespace: 'shop', pod: 'web-0', container: 'web' }
  const lines = [source, { ...source, pod: 'other-web-0' }].map((source, sequence) => ({ ...line(sequence), sequence, truncated: false, source }))
  expect([...matchingKeys(lines, lineIdOf(lines[0]!))]).toEqual([contextKey(line(0))])
})
