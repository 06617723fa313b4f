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
