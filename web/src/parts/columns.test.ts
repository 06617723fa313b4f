import { expect, test } from 'vitest'
import { columnsNamed, DEFAULT_COLUMNS, exported, leastWidth, move, otherColumns } from './columns'

const names = (given: string[] | undefined) => columnsNamed(given).map(({ name }) => name)

test.each([
  [undefined, DEFAULT_COLUMNS],
  [[], DEFAULT_COLUMNS],
  [['nothing'], DEFAULT_COLUMNS],
  [['name', 'cluster', 'name', 'nothing'], ['name', 'cluster']],
])('%j', (given, expected) => {
  expect(names(given)).toEqual(expected)
})

test('what is not shown can be chosen', () => {
  expect(otherColumns(columnsNamed(undefined)).map(({ name }) => name)).toEqual(['node', 'images', 'createdAt', 'apiVersion', 'uid'])
})

test.each([
  ['b', -1, ['b', 'a', 'c']],
  ['b', 1, ['a', 'c', 'b']],
  ['a', -1, ['a', 'b', 'c']],
  ['x', 1, ['a', 'b', 'c']],
])('%s moves by %d', (name, by, expected) => {
  expect(move(['a', 'b', 'c'], name, by)).toEqual(expected)
})

test('an export has fields of hits', () => {
  expect(exported(columnsNamed(['name', 'created', 'createdAt', 'matched', 'images']))).toEqual(['name', 'created', 'images'])
})

test('a table is as wide as its columns at least', () => {
  expect(leastWidth(columnsNamed(['cluster', 'name']))).toBe(390)
})
