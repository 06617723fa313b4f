import { describe, expect, test } from 'vitest'
import { evenGrid, scrollTopToReveal, ROW_HEIGHT, countRows, unevenGrid, visibleLines } from './grid'

test.each([
  ['', 10, 1],
  ['0123456789', 10, 1],
  ['0123456789a', 10, 2],
  ['a\tb', 10, 1],
  ['a\tbcd', 10, 2],
  ['日志日志日志', 10, 2],
  // A wide letter does not fit the last column.
  ['123456789日', 10, 2],
  ['a\nb', 10, 2],
  ['x'.repeat(1_000), 80, 13],
])('%j in %d columns has %d rows', (text, columns, rows) => expect(countRows(text, columns)).toBe(rows))

describe.each([
  ['even', evenGrid(4), [0, 1, 2, 3, 4]],
  ['uneven', unevenGrid([1, 3, 1, 2]), [0, 1, 4, 5, 7]],
])('%s lines', (_, grid, tops) => {
  test('have positions', () => {
    expect([0, 1, 2, 3, 4].map((nth) => grid.top(nth) / ROW_HEIGHT)).toEqual(tops)
    expect(grid.height).toBe(tops[4]! * ROW_HEIGHT)
  })

  test('are found at their positions', () => {
    for (let nth = 0; nth < 4; nth++) expect([grid.at(grid.top(nth)), grid.at(grid.top(nth + 1) - 1)]).toEqual([nth, nth])
    expect([grid.at(-5), grid.at(10_000)]).toEqual([0, 3])
  })

  test('are scrolled into view with the least movement', () => {
    expect(scrollTopToReveal(grid, 0, 30, 60)).toBe(0)
    expect(scrollTopToReveal(grid, 3, 0, 60)).toBe(grid.height - 60)
    expect(scrollTopToReveal(grid, 0, 0, 60)).toBe(0)
  })
})

test('the visible lines and some around them are rendered', () => {
  expect(visibleLines(evenGrid(0), 0, 100)).toEqual({ first: 0, last: -1 })
  expect(visibleLines(evenGrid(1_000), 100 * ROW_HEIGHT, 10 * ROW_HEIGHT)).toEqual({ first: 80, last: 130 })
  expect(visibleLines(unevenGrid(Array.from({ length: 100 }, () => 2)), 100 * ROW_HEIGHT, 10 * ROW_HEIGHT)).toEqual({ first: 30, last: 75 })
})
