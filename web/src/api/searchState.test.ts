import { expect, it } from 'vitest'
import { hitAt, rowCount } from './pages'
import { INITIAL_STATE, reduce, type Action, type ReducerState } from './searchState'
import type { Hit } from './types'

const hit = (name: string): Hit => ({ cluster: 'm1', apiVersion: 'v1', kind: 'Pod', resource: 'pods', namespace: 'shop', name, matched: [] })
const event = (event: string, data: unknown): Action => ({ type: 'event', event, data })
const START: Action = { type: 'start', q: 'kind:pod' }
const done = (total: number) => event('done', { total, totalRelation: 'eq', tookMs: 1, seq: 1, cursor: 'next' })
const after = (state: ReducerState, ...actions: Action[]) => actions.reduce(reduce, state)
const names = ({ pages }: ReducerState) => Array.from({ length: rowCount(pages) }, (_, row) => hitAt(pages, row)?.name)

const FACETS = { kind: [{ value: 'Pod', count: 2 }] }
const shown = after(INITIAL_STATE, START, event('facets', FACETS), event('matches', [hit('a')]), event('matches', [hit('b')]), done(2))

it('hits are added as they arrive', () => {
  expect(names(shown)).toEqual(['a', 'b'])
  expect(shown.facets).toEqual(FACETS)
  expect(shown.done?.total).toBe(2)
})

it('previous results stay until the first new hits arrive', () => {
  const starting = after(shown, { type: 'start', q: 'kind:node' })
  expect(names(starting)).toEqual(['a', 'b'])
  expect(starting.query).toBe('kind:pod')
  // Their next page belongs to the previous query.
  expect(starting.pages.next).toBeUndefined()
  const facets = { kind: [{ value: 'Node', count: 1 }] }
  const streaming = after(starting, event('notices', [{ message: 'n' }]), event('facets', facets), event('skipped', []))
  expect(names(streaming)).toEqual(['a', 'b'])
  expect(streaming.facets).toEqual(FACETS)
  const replaced = after(streaming, event('matches', [hit('c')]))
  expect(names(replaced)).toEqual(['c'])
  expect(replaced.facets).toEqual(facets)
  expect(replaced.query).toBe('kind:node')
  expect(replaced.notices).toEqual([{ message: 'n' }])
})

const summary = (total: number, more: object = {}) => ({ total, totalRelation: 'eq', tookMs: 1, seq: 1, cursor: 'next', ...more })
const NODE_FACETS = { kind: [{ value: 'Node', count: 1 }] }

it('hits are complete with the summary, and the previous facets stay with their query until the new ones arrive', () => {
  const found = after(shown, { type: 'start', q: 'kind:node' }, event('notices', []), event('matches', [hit('c')]), event('summary', summary(1)))
  expect([names(found), found.done?.total, found.pages.next]).toEqual([['c'], 1, 'next'])
  expect([found.query, found.countedQuery, found.facets]).toEqual(['kind:node', 'kind:pod', FACETS])
  const counted = after(found, event('facets', NODE_FACETS))
  expect([counted.countedQuery, counted.facets]).toEqual(['kind:node', NODE_FACETS])
  // The end of the answer has nothing new, so that nothing is rendered.
  expect(after(counted, event('done', summary(1, { tookMs: 20 })))).toBe(counted)
})

it('a page that was loaded before the facets is kept', () => {
  const page: Action = { type: 'nextPage', after: 'next', hits: [hit('d')], cursor: 'last' }
  const loaded = after(shown, START, event('matches', [hit('c')]), event('summary', summary(2)), page, event('facets', {}), event('done', summary(2, { totalRelation: 'gte' })))
  expect([names(loaded), loaded.pages.next, loaded.done?.totalRelation]).toEqual([['c', 'd'], 'last', 'gte'])
})

it('suggestions follow the summary of an empty result', () => {
  const empty = after(shown, START, event('summary', summary(0)))
  expect([names(empty), empty.done?.total]).toEqual([[], 0])
  const done = after(empty, event('facets', {}), event('done', summary(0, { tookMs: 20, didYouMean: ['kind:node'] }))).done
  expect([done?.didYouMean, done?.tookMs]).toEqual([['kind:node'], 1])
})

it.each([
  { name: 'the answer ends', end: event('done', summary(1)) },
  { name: 'the answer fails', end: event('error', { message: 'no' }) },
  { name: 'the connection fails', end: { type: 'error', message: 'no' } as const },
])('the previous facets are removed if $name without new ones', ({ end }) => {
  const ended = after(shown, { type: 'start', q: 'kind:node' }, event('matches', [hit('c')]), end)
  expect([ended.facets, ended.countedQuery]).toEqual([{}, 'kind:node'])
})

it('notices of the counts are added to the first ones', () => {
  const [first, second] = [{ message: 'a' }, { message: 'b' }]
  expect(after(shown, START, event('notices', [first]), event('matches', []), event('notices', [second])).notices).toEqual([first, second])
  expect(after(shown, START, event('notices', [first]), event('notices', [second]), done(0)).notices).toEqual([first, second])
})

it.each([
  { name: 'complete', totalRelation: 'eq', notices: [] },
  { name: 'incomplete', totalRelation: 'gte', notices: [{ message: 'a limit was reached' }] },
])('live counts that are $name replace the total and the notices', ({ totalRelation, notices }) => {
  const before = after(shown, event('notices', [{ message: 'before' }]))
  const counted = after(before, event('counts', { total: 5, totalRelation, facets: NODE_FACETS, notices }))
  expect([counted.done?.total, counted.done?.totalRelation, counted.facets, counted.notices]).toEqual([5, totalRelation, NODE_FACETS, notices])
})

it('an empty response replaces the previous results', () => {
  const empty = after(shown, START, event('facets', {}), done(0))
  expect(names(empty)).toEqual([])
  expect(empty.facets).toEqual({})
})

it('a failed request keeps the previous results', () => {
  const failed = after(shown, START, { type: 'error', message: 'no' })
  expect(names(failed)).toEqual(['a', 'b'])
  expect(failed.error).toBe('no')
})

it('a page that cannot be loaded is reported until another one is loaded', () => {
  const failed = after(shown, { type: 'pageError', message: 'refused' })
  expect([failed.pageError, failed.failedPages, failed.error]).toEqual(['refused', 1, undefined])
  expect(names(failed)).toEqual(['a', 'b'])
  const loaded = after(failed, { type: 'nextPage', after: 'next', hits: [hit('c')], cursor: undefined })
  expect([loaded.pageError, loaded.failedPages]).toEqual([undefined, 1])
  // The number is not reset, so that each failure changes it.
  expect(after(failed, START, event('matches', [hit('d')]))).toMatchObject({ pageError: undefined, failedPages: 1 })
})
