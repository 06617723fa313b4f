import { expect, it } from 'vitest'
import { before, nameOf, Ring } from './ring'

const source = { cluster: 'm1', namespace: 'shop', pod: 'web-0', container: 'web' }
const line = (text: string) => ({ time: '2026-01-01T00:00:10.000000001Z', text, cut: false, source })

it('keeps the newest lines', () => {
  const ring = new Ring(3)
  for (const text of 'abcde') ring.push(line(text))
  expect([0, 1, 2, 3].map((place) => ring.at(place)?.text)).toEqual(['c', 'd', 'e', undefined])
  expect([ring.length, ring.left, ring.total, ring.placeOf(3)]).toEqual([3, 2, 5, 1])
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
