import { expect, test } from 'vitest'
import { maxRenderedRows, renderOrder, scrollTopToReveal, rowAfterKey, visibleRows } from './window'

test.each([
  ['nothing', 0, 600, 0, 0, -1],
  ['the top', 0, 600, 100_000, 0, 28],
  ['the middle', 30_000, 600, 100_000, 992, 1028],
  ['the end', 2_999_400, 600, 100_000, 99_972, 99_999],
  ['less than fits', 0, 600, 3, 0, 2],
  ['beyond the end, when rows have left', 9_000, 600, 10, 9, 9],
])('%s', (_, top, height, count, first, last) => {
  expect(visibleRows(top, height, 30, count)).toEqual({ first, last })
})

test('rows are in document order when the scroll position is unchanged, and reused while scrolling', () => {
  expect(maxRenderedRows(600, 30)).toBe(37)
  expect(renderOrder({ first: 0, last: -1 }, 37, true)).toEqual([])
  expect(renderOrder({ first: 3, last: 7 }, 5, false)).toEqual([3, 4, 5, 6, 7])
  expect(renderOrder({ first: 3, last: 7 }, 5, true)).toEqual([5, 6, 7, 3, 4])
  expect(renderOrder({ first: 4, last: 8 }, 5, true)).toEqual([5, 6, 7, 8, 4])
})

test.each([
  ['in view', 5, 0, 600, 0],
  ['above', 5, 600, 600, 150],
  ['below', 30, 0, 600, 360],
])('a row %s', (_, nth, top, height, to) => {
  expect(scrollTopToReveal(nth, top, height, 30, 30)).toBe(to)
})

test.each([
  ['j', 0, 1],
  ['ArrowUp', 0, 0],
  ['PageDown', 5, 25],
  ['End', 5, 99],
  ['Home', 5, 0],
  ['x', 5, undefined],
])('%s', (key, current, to) => {
  expect(rowAfterKey(key, current, 100, 20)).toBe(to)
})
