import { expect, test } from 'vitest'
import { parseQuantity, formatQuantity, usedFraction } from './quantity'

test.each([
  ['100m', 0.1],
  ['2', 2],
  ['1.5Gi', 1.5 * 2 ** 30],
  ['12e3', 12_000],
  ['3k', 3_000],
  ['5E', 5e18],
  [undefined, 0],
  ['many', 0],
] as const)('%s is %d', (text, value) => {
  expect(parseQuantity(text)).toBeCloseTo(value, 9)
})

test.each([
  ['cpu', 0.25, '0.25'],
  ['cpu', 128, '128'],
  ['memory', 1.5 * 2 ** 30, '1.5Gi'],
  ['requests.storage', 512, '512'],
  ['pods', 110, '110'],
] as const)('%s %d is formatted as %s', (resource, value, text) => {
  expect(formatQuantity(resource, value)).toBe(text)
})

test('a fraction is at most 1, also of a total of zero', () => {
  expect([usedFraction(1, 4), usedFraction(9, 3), usedFraction(0, 0), usedFraction(1, 0)]).toEqual([0.25, 1, 0, 1])
})
