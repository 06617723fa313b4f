import { expect, test } from 'vitest'
import { insertSuggestion } from './useSuggestions'

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
