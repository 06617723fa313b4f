import { expect, it } from 'vitest'
import { rowAt, rows } from './pages'
import { EMPTY, reduce, type Action, type State } from './searchState'
import type { Hit } from './types'

const hit = (name: string): Hit => ({ cluster: 'm1', apiVersion: 'v1', kind: 'Pod', resource: 'pods', namespace: 'shop', name, matched: [] })
const event = (event: string, data: unknown): Action => ({ type: 'event', event, data })
const START: Action = { type: 'start', q: 'kind:pod' }
const done = (total: number) => event('done', { total, totalRelation: 'eq', tookMs: 1, seq: 1, cursor: 'next' })
const after = (state: State, ...actions: Action[]) => actions.reduce(reduce, state)
const names = ({ pages }: State) => Array.from({ length: rows(pages) }, (_, row) => rowAt(pages, row)?.name)

const FACETS = { kind: [{ value: 'Pod', count: 2 }] }
const shown = after(EMPTY, START, event('facets', FACETS), event('matches', [hit('a')]), event('matches', [hit('b')]), done(2))

it('hits are added as they arrive', () => {
  expect(names(shown)).toEqual(['a', 'b'])
  expect(shown.facets).toEqual(FACETS)
  expect(shown.done?.total).toBe(2)
})

it('previous results stay until the first new hits arrive', () => {
  const typed = after(shown, { type: 'start', q: 'kind:node' })
  expect(names(typed)).toEqual(['a', 'b'])
  expect(typed.of).toBe('kind:pod')
  // Their next page belongs to the previous query.
  expect(typed.pages.next).toBeUndefined()
  const facets = { kind: [{ value: 'Node', count: 1 }] }
  const begun = after(typed, event('notices', [{ message: 'n' }]), event('facets', facets), event('skipped', []))
  expect(names(begun)).toEqual(['a', 'b'])
  expect(begun.facets).toEqual(FACETS)
  const found = after(begun, event('matches', [hit('c')]))
  expect(names(found)).toEqual(['c'])
  expect(found.facets).toEqual(facets)
  expect(found.of).toBe('kind:node')
  expect(found.notices).toEqual([{ message: 'n' }])
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
