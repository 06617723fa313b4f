import { expect, it } from 'vitest'
import { CONTROL_PLANE } from '../../api/client'
import type { KubeObject } from '../../api/types'
import { placementLinks } from './placement'

const links = (cluster: string, kind: string, labels: Record<string, string> = {}, apiVersion = 'apps/v1') => {
  const object: KubeObject = { apiVersion, kind, metadata: { name: 'web', namespace: 'shop', labels } }
  return placementLinks({ cluster, apiVersion, resource: '', namespace: 'shop', name: 'web' }, object)
}
const pages = (...of: Parameters<typeof links>) => links(...of).map(({ page }) => page)
const CLAIMED = { 'propagationpolicy.karmada.io/permanent-id': 'x' }

it('a template with a policy has all views', () => {
  expect(links(CONTROL_PLANE, 'Deployment', CLAIMED)).toEqual([
    { page: 'why', href: '/why?apiVersion=apps%2Fv1&kind=Deployment&namespace=shop&name=web' },
    { page: 'topology', href: '/topology?apiVersion=apps%2Fv1&kind=Deployment&namespace=shop&name=web' },
    { page: 'drift', href: '/drift?apiVersion=apps%2Fv1&kind=Deployment&namespace=shop&name=web' },
  ])
})

it('a copy leads to its template, and to the drift in its cluster', () => {
  const copy = links('member1', 'Deployment', { 'karmada.io/managed': 'true' })
  expect(copy.map(({ page }) => page)).toEqual(['why', 'topology', 'drift'])
  expect(copy.at(-1)?.href).toBe('/drift?apiVersion=apps%2Fv1&kind=Deployment&name=web&namespace=shop&cluster=member1')
})

it('other objects have only views that apply to them', () => {
  expect(pages(CONTROL_PLANE, 'Deployment')).toEqual(['why'])
  expect(pages('member1', 'Deployment')).toEqual([])
  expect(pages(CONTROL_PLANE, 'Event', {}, 'v1')).toEqual([])
  expect(pages(CONTROL_PLANE, 'PropagationPolicy', CLAIMED, 'policy.karmada.io/v1alpha1')).toEqual([])
})
