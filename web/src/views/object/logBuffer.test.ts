import { expect, it } from 'vitest'
import { timeBefore, lineIdOf, LogBuffer, PausedLines, timeKey } from './logBuffer'

const source = { cluster: 'm1', namespace: 'shop', pod: 'web-0', container: 'web' }
const line = (text: string) => ({ time: '2026-01-01T00:00:10.000000001Z', text, truncated: false, source })

it('keeps the newest lines', () => {
  const buffer = new LogBuffer(3)
  for (const text of 'abcde') buffer.push(line(text))
  expect([0, 1, 2, 3].map((index) => buffer.at(index)?.text)).toEqual(['c', 'd', 'e', undefined])
  expect([buffer.length, buffer.dropped, buffer.total, buffer.indexOf(buffer.at(1)!)]).toEqual([3, 2, 5, 1])
})

it('lines of a paused view are added when it continues, at most the newest', () => {
  const buffer = new LogBuffer()
  const paused = new PausedLines(8)
  buffer.push(line('shown'))
  for (let nth = 0; nth < 10; nth++) paused.push(line(String(nth)))
  expect([buffer.length, paused.count]).toEqual([1, 10])
  paused.moveTo(buffer)
  expect([buffer.length, buffer.at(1)?.text, buffer.at(8)?.text, paused.count]).toEqual([9, '2', '9', 0])
  expect([buffer.total, buffer.dropped]).toEqual([11, 2])
})

it('long lines reduce the number of lines of a paused view', () => {
  const buffer = new LogBuffer()
  const paused = new PausedLines(100, 1_000)
  for (let nth = 0; nth < 50; nth++) paused.push(line('x'.repeat(400)))
  paused.moveTo(buffer)
  expect([buffer.length, buffer.total]).toEqual([2, 50])
})

it('long lines reduce the number of lines', () => {
  const buffer = new LogBuffer(100, 1_000)
  for (let nth = 0; nth < 50; nth++) buffer.push(line('x'.repeat(400)))
  expect(buffer.length).toBe(2)
  buffer.push(line('y'.repeat(5_000)))
  expect([buffer.length, buffer.at(0)?.text.length]).toEqual([1, 5_000])
})

it('the number of characters is bounded', () => {
  const buffer = new LogBuffer(2_000)
  for (let nth = 0; nth < 100_000; nth++) buffer.push(line(String(nth)))
  expect([buffer.at(0)?.text, buffer.at(1_999)?.text, buffer.findLast(({ text }) => text === '98500')?.sequence]).toEqual(['98000', '99999', 98_500])
  expect((buffer as unknown as { lines: unknown[] }).lines.length).toBeLessThanOrEqual(4_001)
})

it('a line has an identifier, from which the start time of a request is derived', () => {
  const buffer = new LogBuffer()
  buffer.push(line('a'))
  const lineId = lineIdOf(buffer.at(0)!)
  expect(lineId).toBe('2026-01-01T00:00:10.000000001Z m1 shop web-0 web')
  expect(timeBefore(lineId)).toBe('2026-01-01T00:00:05.000Z')
  expect(timeBefore(' m1')).toBeUndefined()
})

const at = (pod: string, time: string | undefined, text: string) => ({ time, text, truncated: false, source: pod === 'a' ? A : B })
const A = { ...source, pod: 'a' }
const B = { ...source, pod: 'b' }
const texts = (buffer: LogBuffer) => Array.from({ length: buffer.length }, (_, index) => buffer.at(index)?.text)

it('earlier lines of several pods are sorted by time', () => {
  const buffer = new LogBuffer()
  buffer.push(at('a', '2026-01-01T00:00:01.000000000Z', 'a1'))
  buffer.push(at('a', '2026-01-01T00:00:03.000000000Z', 'a3'))
  buffer.push(at('a', undefined, 'continues a3'))
  buffer.push(at('a', '2026-01-01T00:00:05.000000000Z', 'a5'))
  expect(texts(buffer)).toEqual(['a1', 'a3', 'continues a3', 'a5'])
  const selected = buffer.at(1)!
  buffer.push(at('b', '2026-01-01T00:00:02.000000000Z', 'b2'))
  buffer.push(at('b', '2026-01-01T00:00:03.000000000Z', 'b3'))
  buffer.push(at('b', '2026-01-01T00:00:04.000000000Z', 'b4'))
  expect(texts(buffer)).toEqual(['a1', 'b2', 'a3', 'continues a3', 'b3', 'b4', 'a5'])
  // Lines keep their identity while others are inserted before them.
  expect(Array.from({ length: 7 }, (_, index) => buffer.indexOf(buffer.at(index)!))).toEqual([0, 1, 2, 3, 4, 5, 6])
  expect(buffer.indexOf(selected)).toBe(2)
})

it('the oldest lines by time are dropped, not the first that arrived', () => {
  const buffer = new LogBuffer(3)
  for (const second of [7, 8, 9]) buffer.push(at('a', `2026-01-01T00:00:0${second}Z`, `a${second}`))
  const early = [1, 2, 3].map((second) => at('b', `2026-01-01T00:00:0${second}Z`, `b${second}`))
  for (const line of early) buffer.push(line)
  expect(texts(buffer)).toEqual(['a7', 'a8', 'a9'])
  expect(buffer.indexOf({ ...early[0]!, sequence: 3 })).toBe(-1)
})

it.each([
  ['2026-01-01T00:00:10Z', '2026-01-01T00:00:10.000000000Z'],
  ['2026-01-01T00:00:10.12Z', '2026-01-01T00:00:10.120000000Z'],
  ['2026-01-01T02:00:10.1+02:00', '2026-01-01T00:00:10.100000000Z'],
  ['2026-01-01T00:00:10.000000001Z', '2026-01-01T00:00:10.000000001Z'],
])('%s is sorted as %s', (time, key) => expect(timeKey(time)).toBe(key))
