import { expect, test } from 'vitest'
import { insertSuggestion, reposition } from './useSuggestions'

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
