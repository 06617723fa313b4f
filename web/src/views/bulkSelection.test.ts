import { expect, it } from 'vitest'
import { CONTROL_PLANE } from '../api/client'
import { keyOf } from '../api/pages'
import type { Hit } from '../api/types'
import { copiesOfTemplates, loadedHits } from './bulkSelection'

const hit = (cluster: string, name: string): Hit => ({ cluster, apiVersion: 'apps/v1', kind: 'Deployment', resource: 'deployments', namespace: 'shop', name, matched: [] })
const [template, east, west, report] = [hit(CONTROL_PLANE, 'cache'), hit('east', 'cache'), hit('west', 'cache'), hit('west', 'report')]

it('copies are covered by a selected template', () => {
  const isCopy = (key: string) => [east, west].some((copy) => keyOf(copy) === key)
  expect(copiesOfTemplates([template, east, west, report], isCopy)).toEqual([east, west])
  expect(copiesOfTemplates([east, west, report], isCopy)).toEqual([])
  // An object of the same name that is not propagated is not covered.
  expect(copiesOfTemplates([template, west], () => false)).toEqual([])
})

it('selects loaded hits once, also those that were added live', () => {
  const page = { cursor: undefined, hits: [east, west], count: 2 }
  const dropped = { cursor: 'next', hits: undefined, count: 500 }
  expect([...loadedHits({ fresh: [report, east], pages: [page, dropped], next: undefined }).values()]).toEqual([report, east, west])
})
