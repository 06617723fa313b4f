import { expect, test } from 'vitest'
import type { Suggestions } from './types'
import { insertSuggestion, MAX_SUGGESTIONS, narrow, reposition } from './useSuggestions'

test.each([
  ['st', { start: 0, end: 2 }, { text: 'status:' }, 'status:', 7],
  ['kind:po', { start: 5, end: 7, field: 'kind' }, { text: 'Pod', count: 3 }, 'kind:Pod ', 9],
  ['kind:po nginx', { start: 5, end: 7, field: 'kind' }, { text: 'Pod', count: 3 }, 'kind:Pod nginx', 9],
  ['(kind:po)', { start: 6, end: 8, field: 'kind' }, { text: 'Pod', count: 3 }, '(kind:Pod)', 10],
  ['status:n', { start: 7, end: 8, field: 'status' }, { text: 'Not Ready', count: 1 }, 'status:"Not Ready" ', 19],
  ['label:te', { start: 6, end: 8, field: 'label' }, { text: 'team', count: 9 }, 'label:team=', 11],
  ['label:team=m', { start: 6, end: 12, field: 'label' }, { text: 'team=media', count: 9 }, 'label:team=media ', 17],
  ['restarts:', { start: 9, end: 9, field: 'restarts' }, { text: '>1' }, 'restarts:>1 ', 12],
  ['容器 ki', { start: 7, end: 9 }, { text: 'kind:' }, '容器 kind:', 8],
] as const)('%s', (query, where, suggestion, expected, at) => {
  expect(insertSuggestion(query, { ...where, items: [] }, suggestion)).toEqual({ query: expected, at })
})

test.each([
  ['unchanged', 'ki', [0, 2], 'ki', [0, 2]],
  ['typed on', 'ki', [0, 2], 'kind', [0, 4]],
  ['shortened', 'kin', [0, 3], 'k', [0, 1]],
  ['between other terms', 'a ki b', [2, 4], 'a kin b', [2, 5]],
  ['after wide characters', '容器 ki', [7, 9], '容器 kin', [7, 10]],
  ['a value', 'kind:p', [5, 6], 'kind:po', [5, 7]],
  ['a value of a label', 'label:team=m', [6, 12], 'label:team=med', [6, 14]],
  ['another term', 'ki', [0, 2], 'ki n', undefined],
  ['the value of the term', 'kind', [0, 4], 'kind:', undefined],
  ['another text before', 'a ki', [2, 4], 'ki', undefined],
  ['another text after', 'ki b', [0, 2], 'ki', undefined],
] as const)('suggestions of an earlier text: %s', (_, requested, [start, end], query, expected) => {
  const suggestions = { start, end, items: [] }
  expect(reposition(suggestions, requested, query)).toEqual(expected && { start: expected[0], end: expected[1], items: [] })
})

const STATUSES = [
  { text: 'Running', count: 9 },
  { text: 'Error', count: 5 },
  { text: 'PodRunning', count: 5 },
  { text: 'Run', count: 1 },
]
const MANY = Array.from({ length: MAX_SUGGESTIONS }, (_, nth) => ({ text: `Run${nth}`, count: 1 }))
const statuses = { start: 7, end: 7, field: 'status', items: STATUSES }
const anyStatus = { query: 'status:', cursor: 7 }
const r = { query: 'status:r b', cursor: 8 }

test.each<[name: string, suggestions: Suggestions, requested: { query: string; cursor: number }, query: string, at: number, expected: string[] | undefined]>([
  ['unchanged', statuses, anyStatus, 'status:', 7, ['Running', 'Error', 'PodRunning', 'Run']],
  ['values that begin with the text come first', statuses, anyStatus, 'status:r', 8, ['Running', 'Run', 'Error', 'PodRunning']],
  ['values without the text are left out', statuses, anyStatus, 'status:RUN', 10, ['Running', 'Run', 'PodRunning']],
  ['no value', statuses, anyStatus, 'status:x', 8, []],
  ['before other terms', { ...statuses, end: 8 }, r, 'status:ru b', 9, ['Running', 'Run', 'PodRunning']],
  ['a shorter text', { ...statuses, end: 8 }, r, 'status: b', 7, undefined],
  ['another text', { ...statuses, end: 8 }, r, 'status:e b', 8, undefined],
  ['the cursor within the value', statuses, anyStatus, 'status:ru', 8, undefined],
  ['the cursor was within the value', { ...statuses, end: 8 }, { ...r, cursor: 7 }, 'status:ru b', 9, undefined],
  ['an operator', statuses, anyStatus, 'status:!', 8, undefined],
  ['another value of a list', statuses, anyStatus, 'status:run,e', 12, undefined],
  ['another term', statuses, anyStatus, 'status:run e', 12, undefined],
  ['not all values are known', { ...statuses, items: MANY }, anyStatus, 'status:r', 8, undefined],
  ['not all values were counted', { ...statuses, incomplete: true }, anyStatus, 'status:r', 8, undefined],
  ['values that are searched by prefix', { ...statuses, field: 'name' }, anyStatus, 'status:r', 8, undefined],
  ['fields', { start: 0, end: 1, items: [{ text: 'status:' }] }, { query: 's', cursor: 1 }, 'st', 2, undefined],
])('suggestions while a value is typed: %s', (_, suggestions, requested, query, at, expected) => {
  expect(narrow(suggestions, requested, query, at)?.items.map(({ text }) => text)).toEqual(expected)
})
