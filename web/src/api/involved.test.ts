import { expect, it } from 'vitest'
import { involvedAddress, involvedObjectOf } from './involved'
import type { KubeObject } from './types'

const event = (apiVersion: string, fields: object): KubeObject => ({ apiVersion, kind: 'Event', metadata: { name: 'e', namespace: 'shop' }, ...fields })
const POD = { apiVersion: 'v1', kind: 'Pod', namespace: 'shop', name: 'web-0' }

it('the involved object of Events of both groups is found', () => {
  expect(involvedObjectOf(event('v1', { involvedObject: POD }))).toEqual(POD)
  expect(involvedObjectOf(event('events.k8s.io/v1', { regarding: POD }))).toEqual(POD)
  expect(involvedObjectOf(event('example.com/v1', { involvedObject: POD }))).toBeUndefined()
})

it.each([
  [POD, '/object?cluster=m1&apiVersion=v1&resource=pods&namespace=shop&name=web-0'],
  [{ apiVersion: 'apps/v1', kind: 'Deployment', namespace: 'shop', name: 'web' }, '/object?cluster=m1&apiVersion=apps%2Fv1&resource=deployments&namespace=shop&name=web'],
  [{ apiVersion: 'v1', kind: 'Node', namespace: 'default', name: 'n1' }, '/object?cluster=m1&apiVersion=v1&resource=nodes&name=n1'],
  [{ apiVersion: 'policy.karmada.io/v1alpha1', kind: 'ClusterPropagationPolicy', name: 'p' }, '/object?cluster=m1&apiVersion=policy.karmada.io%2Fv1alpha1&resource=clusterpropagationpolicies&name=p'],
  // The resource of a custom kind is unknown: a search finds it.
  [{ apiVersion: 'example.com/v1', kind: 'Thing', namespace: 'shop', name: 'x' }, '/search?q=kind%3AThing.example.com+name%3A%3D%22x%22+ns%3A%3D%22shop%22+cluster%3A%3D%22m1%22'],
  [{ kind: 'Thing', name: 'x' }, '/search?q=kind%3AThing+name%3A%3D%22x%22+cluster%3A%3D%22m1%22'],
  [{ kind: 'Pod' }, undefined],
])('the address of %j is %s', (involved, address) => expect(involvedAddress('m1', involved)).toBe(address))
