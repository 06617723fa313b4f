import { expect, it } from 'vitest'
import { before, nameOf, Ring, timeKey } from './ring'

const source = { cluster: 'm1', namespace: 'shop', pod: 'web-0', container: 'web' }
const line = (text: string) => ({ time: '2026-01-01T00:00:10.000000001Z', text, cut: false, source })

it('keeps the newest lines', () => {
  const ring = new Ring(3)
  for (const text of 'abcde') ring.push(line(text))
  expect([0, 1, 2, 3].map((place) => ring.at(place)?.text)).toEqual(['c', 'd', 'e', undefined])
  expect([ring.length, ring.left, ring.total, ring.placeOf(ring.at(1)!)]).toEqual([3, 2, 5, 1])
})

it('long lines reduce the number of lines', () => {
  const ring = new Ring(100, 1_000)
  for (let nth = 0; nth < 50; nth++) ring.push(line('x'.repeat(400)))
  expect(ring.length).toBe(2)
  ring.push(line('y'.repeat(5_000)))
  expect([ring.length, ring.at(0)?.text.length]).toEqual([1, 5_000])
})

it('memory is bounded', () => {
  const ring = new Ring(2_000)
  for (let nth = 0; nth < 100_000; nth++) ring.push(line(String(nth)))
  expect([ring.at(0)?.text, ring.at(1_999)?.text, ring.findLast(({ text }) => text === '98500')?.nth]).toEqual(['98000', '99999', 98_500])
  expect((ring as unknown as { lines: unknown[] }).lines.length).toBeLessThanOrEqual(4_001)
})

it('a line has an identifier, and is requested from before its time', () => {
  const ring = new Ring()
  ring.push(line('a'))
  const name = nameOf(ring.at(0)!)
  expect(name).toBe('2026-01-01T00:00:10.000000001Z m1 shop web-0 web')
  expect(before(name)).toBe('2026-01-01T00:00:05.000Z')
  expect(before(' m1')).toBeUndefined()
})

const at = (pod: string, time: string | undefined, text: string) => ({ time, text, cut: false, source: pod === 'a' ? A : B })
const A = { ...source, pod: 'a' }
const B = { ...source, pod: 'b' }
const texts = (ring: Ring) => Array.from({ length: ring.length }, (_, place) => ring.at(place)?.text)

it('the backlog of several pods is in the order of time', () => {
  const ring = new Ring()
  ring.push(at('a', '2026-01-01T00:00:01.000000000Z', 'a1'))
  ring.push(at('a', '2026-01-01T00:00:03.000000000Z', 'a3'))
  ring.push(at('a', undefined, 'continues a3'))
  ring.push(at('a', '2026-01-01T00:00:05.000000000Z', 'a5'))
  expect(texts(ring)).toEqual(['a1', 'a3', 'continues a3', 'a5'])
  const selected = ring.at(1)!
  ring.push(at('b', '2026-01-01T00:00:02.000000000Z', 'b2'))
  ring.push(at('b', '2026-01-01T00:00:03.000000000Z', 'b3'))
  ring.push(at('b', '2026-01-01T00:00:04.000000000Z', 'b4'))
  expect(texts(ring)).toEqual(['a1', 'b2', 'a3', 'continues a3', 'b3', 'b4', 'a5'])
  // Lines keep their identity while others are inserted before them.
  expect(Array.from({ length: 7 }, (_, place) => ring.placeOf(ring.at(place)!))).toEqual([0, 1, 2, 3, 4, 5, 6])
  expect(ring.placeOf(selected)).toBe(2)
})

it('the oldest lines by time are dropped, not the first that arrived', () => {
  const ring = new Ring(3)
  for (const second of [7, 8, 9]) ring.push(at('a', `2026-01-01T00:00:0${second}Z`, `a${second}`))
  const early = [1, 2, 3].map((second) => at('b', `2026-01-01T00:00:0${second}Z`, `b${second}`))
  for (const line of early) ring.push(line)
  expect(texts(ring)).toEqual(['a7', 'a8', 'a9'])
  expect(ring.placeOf({ ...early[0]!, nth: 3 })).toBe(-1)
})

it.each([
  ['2026-01-01T00:00:10Z', '2026-01-01T00:00:10.000000000Z'],
  ['2026-01-01T00:00:10.12Z', '2026-01-01T00:00:10.120000000Z'],
  ['2026-01-01T02:00:10.1+02:00', '2026-01-01T00:00:10.100000000Z'],
  ['2026-01-01T00:00:10.000000001Z', '2026-01-01T00:00:10.000000001Z'],
])('%s is sorted as %s', (time, key) => expect(timeKey(time)).toBe(key))
