import { describe, expect, test } from 'vitest'
import { unwrappedLayout, scrollTopToReveal, ROW_HEIGHT, countRows, wrappedLayout, visibleLines } from './lineLayout'

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
  ['even', unwrappedLayout(4), [0, 1, 2, 3, 4]],
  ['uneven', wrappedLayout([1, 3, 1, 2]), [0, 1, 4, 5, 7]],
])('%s lines', (_, layout, tops) => {
  test('have positions', () => {
    expect([0, 1, 2, 3, 4].map((nth) => layout.top(nth) / ROW_HEIGHT)).toEqual(tops)
    expect(layout.height).toBe(tops[4]! * ROW_HEIGHT)
  })

  test('are found at their positions', () => {
    for (let nth = 0; nth < 4; nth++) expect([layout.at(layout.top(nth)), layout.at(layout.top(nth + 1) - 1)]).toEqual([nth, nth])
    expect([layout.at(-5), layout.at(10_000)]).toEqual([0, 3])
  })

  test('are scrolled into view with the least movement', () => {
    expect(scrollTopToReveal(layout, 0, 30, 60)).toBe(0)
    expect(scrollTopToReveal(layout, 3, 0, 60)).toBe(layout.height - 60)
    expect(scrollTopToReveal(layout, 0, 0, 60)).toBe(0)
  })
})

test('the visible lines and some around them are rendered', () => {
  expect(visibleLines(unwrappedLayout(0), 0, 100)).toEqual({ first: 0, last: -1 })
  expect(visibleLines(unwrappedLayout(1_000), 100 * ROW_HEIGHT, 10 * ROW_HEIGHT)).toEqual({ first: 80, last: 130 })
  expect(visibleLines(wrappedLayout(Array.from({ length: 100 }, () => 2)), 100 * ROW_HEIGHT, 10 * ROW_HEIGHT)).toEqual({ first: 30, last: 75 })
})
