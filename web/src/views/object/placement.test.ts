import { expect, it } from 'vitest'
import { CONTROL_PLANE } from '../../api/client'
import type { KubeObject } from '../../api/types'
import { PLACEMENT_TABS, placementTabs } from './placement'

const tabs = (cluster: string, kind: string, labels: Record<string, string> = {}, apiVersion = 'apps/v1') => {
  const object: KubeObject = { apiVersion, kind, metadata: { name: 'web', namespace: 'shop', labels } }
  return placementTabs({ cluster }, object)
}
const CLAIMED = { 'propagationpolicy.karmada.io/permanent-id': 'x' }

it('a template with a policy, and a copy of it, have all tabs', () => {
  expect(tabs(CONTROL_PLANE, 'Deployment', CLAIMED)).toEqual(PLACEMENT_TABS)
  expect(tabs('member1', 'Deployment', { 'karmada.io/managed': 'true' })).toEqual(PLACEMENT_TABS)
})

it('other objects have only tabs that apply to them', () => {
  expect(tabs(CONTROL_PLANE, 'Deployment')).toEqual(['placement'])
  expect(tabs('member1', 'Deployment')).toEqual([])
  expect(tabs(CONTROL_PLANE, 'Event', {}, 'v1')).toEqual([])
  expect(tabs(CONTROL_PLANE, 'PropagationPolicy', CLAIMED, 'policy.karmada.io/v1alpha1')).toEqual([])
})
