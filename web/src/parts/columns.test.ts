import { expect, test } from 'vitest'
import type { Hit } from '../api/types'
import { en } from '../text/en'
import { columnsNamed, DEFAULT_COLUMNS, exported, isAsked, leastWidth, move, otherColumns, titleOf } from './columns'

const names = (given: string[] | undefined) => columnsNamed(given).map(({ name }) => name)

test.each([
  [undefined, DEFAULT_COLUMNS],
  [[], DEFAULT_COLUMNS],
  [['nothing'], DEFAULT_COLUMNS],
  [['name', 'cluster', 'name', 'nothing'], ['name', 'cluster']],
])('%j', (given, expected) => {
  expect(names(given)).toEqual(expected)
})

test('labels and printed columns can be columns', () => {
  const columns = columnsNamed(['name', 'label:app.kubernetes.io/name', 'print:Up-to-date', '.spec.replicas', 'label:', 'label:a,b', '.'])
  expect(columns.map((column) => titleOf(column, en))).toEqual(['Name', 'app.kubernetes.io/name', 'Up-to-date', '.spec.replicas'])
  expect(columns.map(({ name }) => isAsked(name))).toEqual([false, true, true, true])
  const hit = { name: 'web', matched: [], columns: { 'label:app.kubernetes.io/name': 'web', 'print:Up-to-date': '2', '.spec.replicas': '3' } } as unknown as Hit
  expect(columns.slice(1).map(({ show }) => show(hit))).toEqual(['web', '2', '3'])
  expect(exported(columns)).toEqual(['name', 'label:app.kubernetes.io/name', 'print:Up-to-date', '.spec.replicas'])
})

test('hidden columns can be selected', () => {
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

test('a table has at least the width of its columns', () => {
  expect(leastWidth(columnsNamed(['cluster', 'name']))).toBe(390)
})
