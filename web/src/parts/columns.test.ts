import { expect, test } from 'vitest'
import type { Hit } from '../api/types'
import { en } from '../text/en'
import { findColumns, DEFAULT_COLUMNS, exportColumns, isRequestedColumn, minTableWidth, moveName, otherColumns, titleOf } from './columns'

const namesOf = (columns: string[] | undefined) => findColumns(columns).map(({ name }) => name)

test.each([
  [undefined, DEFAULT_COLUMNS],
  [[], DEFAULT_COLUMNS],
  [['nothing'], DEFAULT_COLUMNS],
  [['name', 'cluster', 'name', 'nothing'], ['name', 'cluster']],
])('the columns of %j are %j', (names, expected) => {
  expect(namesOf(names)).toEqual(expected)
})

test('labels, printed columns and paths are requested columns', () => {
  const columns = findColumns(['name', 'label:app.kubernetes.io/name', 'print:Up-to-date', '.spec.replicas', 'label:', 'label:a,b', '.'])
  expect(columns.map((column) => titleOf(column, en))).toEqual(['Name', 'app.kubernetes.io/name', 'Up-to-date', '.spec.replicas'])
  expect(columns.map(({ name }) => isRequestedColumn(name))).toEqual([false, true, true, true])
  const hit = { name: 'web', matched: [], columns: { 'label:app.kubernetes.io/name': 'web', 'print:Up-to-date': '2', '.spec.replicas': '3' } } as unknown as Hit
  expect(columns.slice(1).map(({ show }) => show(hit))).toEqual(['web', '2', '3'])
  expect(exportColumns(columns)).toEqual(['name', 'label:app.kubernetes.io/name', 'print:Up-to-date', '.spec.replicas'])
})

test('hidden columns can be selected', () => {
  expect(otherColumns(findColumns(undefined)).map(({ name }) => name)).toEqual(['node', 'images', 'createdAt', 'apiVersion', 'uid'])
})

test.each([
  ['b', -1, ['b', 'a', 'c']],
  ['b', 1, ['a', 'c', 'b']],
  ['a', -1, ['a', 'b', 'c']],
  ['x', 1, ['a', 'b', 'c']],
])('%s moves by %d', (name, offset, expected) => {
  expect(moveName(['a', 'b', 'c'], name, offset)).toEqual(expected)
})

test('an export has no columns that only the page can render', () => {
  expect(exportColumns(findColumns(['name', 'created', 'createdAt', 'matched', 'images']))).toEqual(['name', 'created', 'images'])
})

test('the minimum width of a table is the sum of its columns', () => {
  expect(minTableWidth(findColumns(['cluster', 'name']))).toBe(390)
})
