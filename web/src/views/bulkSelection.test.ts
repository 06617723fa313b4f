import { describe, expect, it } from 'vitest'
import { CONTROL_PLANE } from '../api/client'
import { keyOf } from '../api/pages'
import type { Hit } from '../api/types'
import { copiesOfTemplates, nextSelectionStep } from './bulkSelection'

const hit = (cluster: string, name: string): Hit => ({ cluster, apiVersion: 'apps/v1', kind: 'Deployment', resource: 'deployments', namespace: 'shop', name, matched: [] })
const [template, east, west, report] = [hit(CONTROL_PLANE, 'cache'), hit('east', 'cache'), hit('west', 'cache'), hit('west', 'report')]

it('copies are covered by a selected template', () => {
  const isCopy = (key: string) => [east, west].some((copy) => keyOf(copy) === key)
  expect(copiesOfTemplates([template, east, west, report], isCopy)).toEqual([east, west])
  expect(copiesOfTemplates([east, west, report], isCopy)).toEqual([])
  // An object of the same name that is not propagated is not covered.
  expect(copiesOfTemplates([template, west], () => false)).toEqual([])
})

describe('all hits', () => {
  const first = { cursor: undefined, hits: [east, west], count: 2 }
  const second = { cursor: 'next', hits: [template], count: 1 }
  const dropped = { cursor: 'next', hits: undefined, count: 500 }

  it.each([
    ['are selected once, also those that were added live', { fresh: [report, east], pages: [first, second], next: undefined }, false, [report, east, west, template]],
    ['may be none', { fresh: [], pages: [], next: undefined }, false, []],
    ['are not selected before the next page is loaded', { fresh: [], pages: [first], next: 'next' }, false, undefined],
    ['are not selected before a dropped page is loaded again', { fresh: [], pages: [first, dropped], next: undefined }, false, undefined],
    ['are those that are loaded if the next page fails', { fresh: [report], pages: [first], next: 'next' }, true, [report, east, west]],
    ['are those that are loaded if a dropped page fails', { fresh: [], pages: [first, dropped], next: undefined }, true, [east, west]],
  ])('%s', (_, pages, hasFailed, expected) => {
    expect(nextSelectionStep(pages, hasFailed)).toEqual(expected ? { selected: new Map(expected.map((hit) => [keyOf(hit), hit])) } : { load: true })
  })
})
