import { describe, expect, test } from 'vitest'
import { even, reveal, ROW, rowsOf, uneven, visible } from './grid'

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
])('%j in %d columns has %d rows', (text, columns, rows) => expect(rowsOf(text, columns)).toBe(rows))

describe.each([
  ['even', even(4), [0, 1, 2, 3, 4]],
  ['uneven', uneven([1, 3, 1, 2]), [0, 1, 4, 5, 7]],
])('%s lines', (_, grid, tops) => {
  test('have places', () => {
    expect([0, 1, 2, 3, 4].map((nth) => grid.top(nth) / ROW)).toEqual(tops)
    expect(grid.height).toBe(tops[4]! * ROW)
  })

  test('are found at their places', () => {
    for (let nth = 0; nth < 4; nth++) expect([grid.at(grid.top(nth)), grid.at(grid.top(nth + 1) - 1)]).toEqual([nth, nth])
    expect([grid.at(-5), grid.at(10_000)]).toEqual([0, 3])
  })

  test('are revealed with the least movement', () => {
    expect(reveal(grid, 0, 30, 60)).toBe(0)
    expect(reveal(grid, 3, 0, 60)).toBe(grid.height - 60)
    expect(reveal(grid, 0, 0, 60)).toBe(0)
  })
})

test('the visible lines, and some around them', () => {
  expect(visible(even(0), 0, 100)).toEqual({ first: 0, last: -1 })
  expect(visible(even(1_000), 100 * ROW, 10 * ROW)).toEqual({ first: 80, last: 130 })
  expect(visible(uneven(Array.from({ length: 100 }, () => 2)), 100 * ROW, 10 * ROW)).toEqual({ first: 30, last: 75 })
})
