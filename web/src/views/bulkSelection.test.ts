import { describe, expect, it } from 'vitest'
import { CONTROL_PLANE } from '../api/client'
import { keyOf } from '../api/pages'
import type { Hit } from '../api/types'
import { allHits, copiesOfTemplates } from './bulkSelection'

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

  it('are selected once, also those that were added live', () => {
    const second = { cursor: 'next', hits: [template], count: 1 }
    expect([...(allHits({ fresh: [report, east], pages: [first, second], next: undefined })?.values() ?? [])]).toEqual([report, east, west, template])
    expect(allHits({ fresh: [], pages: [], next: undefined })).toEqual(new Map())
  })

  it('are not selected before all pages are loaded', () => {
    expect(allHits({ fresh: [], pages: [first], next: 'next' })).toBeUndefined()
    expect(allHits({ fresh: [], pages: [first, { cursor: 'next', hits: undefined, count: 500 }], next: undefined })).toBeUndefined()
  })
})
