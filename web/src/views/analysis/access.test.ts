import { expect, test } from 'vitest'
import type { ObjectRef } from '../../api/client'
import { accessAddress, incompleteClusters, referenceText, reviewSpec, subjectAddress, subjectSpec, type Action, type Reference } from './access'

test.each<[Action, object]>([
  [{ verb: 'get', resource: 'secrets', namespace: 'shop' }, { resourceAttributes: { verb: 'get', resource: 'secrets', namespace: 'shop' } }],
  [{ verb: 'update', resource: 'deployments.apps/scale', name: 'web' }, { resourceAttributes: { verb: 'update', group: 'apps', resource: 'deployments', subresource: 'scale', name: 'web' }, namespaces: ['*'] }],
  [{ verb: 'list', resource: 'roles.rbac.authorization.k8s.io', namespace: '' }, { resourceAttributes: { verb: 'list', group: 'rbac.authorization.k8s.io', resource: 'roles' }, namespaces: ['*'] }],
  [{ verb: 'get', resource: 'nodes', name: 'n1', scope: 'Cluster', cluster: 'member1' }, { resourceAttributes: { verb: 'get', resource: 'nodes', name: 'n1' }, clusters: ['member1'] }],
  [{ verb: 'get', resource: '/metrics', namespace: 'shop' }, { nonResourceAttributes: { verb: 'get', path: '/metrics' } }],
])('%j has the review spec %j', (action, spec) => expect(reviewSpec(action)).toEqual(spec))

test.each([
  [undefined, '–'],
  [{ kind: 'Group', name: 'sre' }, 'Group sre'],
  [{ kind: 'Role', namespace: 'shop', name: 'secrets' }, 'Role shop/secrets'],
])('%j is shown as %s', (reference, text) => expect(referenceText(reference)).toBe(text))

test.each<[string, string | undefined, object | undefined]>([
  ['ann', undefined, { user: 'ann' }],
  ['https://issuer/ann', undefined, { user: 'https://issuer/ann' }],
  ['user/ann', 'member1', { user: 'ann', clusters: ['member1'] }],
  ['group/acme/sre', undefined, { groups: ['acme/sre'] }],
  ['sa/shop/web', undefined, { user: 'system:serviceaccount:shop:web' }],
  ['sa/web', undefined, undefined],
  ['group/', undefined, undefined],
  ['', undefined, undefined],
])('subject %j in cluster %j has the spec %j', (text, cluster, spec) => expect(subjectSpec(text, cluster)).toEqual(spec))

test.each<[Reference, string]>([
  [{ kind: 'Group', name: 'system:masters' }, '/who-can?subject=group%2Fsystem%3Amasters'],
  [{ kind: 'ServiceAccount', namespace: 'shop', name: 'web' }, '/who-can?subject=sa%2Fshop%2Fweb'],
])('the roles of %j are at %s', (subject, address) => expect(subjectAddress(subject)).toBe(address))

test.each<[ObjectRef, string]>([
  [{ cluster: 'm1', apiVersion: 'apps/v1', resource: 'deployments', namespace: 'shop', name: 'web' }, '/who-can?verb=get&resource=deployments.apps&name=web&namespace=shop&cluster=m1'],
  [{ cluster: 'm1', apiVersion: 'v1', resource: 'nodes', name: 'n1' }, '/who-can?verb=get&resource=nodes&name=n1&cluster=m1&scope=Cluster'],
  [{ cluster: 'm1', apiVersion: 'v1', resource: 'namespaces', name: 'shop' }, '/who-can?verb=get&resource=namespaces&name=shop&namespace=shop&cluster=m1'],
])('the access to %j is at %s', (object, address) => expect(accessAddress(object)).toBe(address))

test('clusters whose rules are not complete are listed with the reason and the age of the rules', () => {
  expect(
    incompleteClusters([
      { name: 'm1', state: 'Complete' },
      { name: 'm2', state: 'Stale', evaluationError: 'connection refused', ageSeconds: 90 },
      { name: 'm3', state: 'Unknown' },
    ]),
  ).toEqual([
    { cluster: 'm2', reason: 'Stale: connection refused', ageSeconds: 90 },
    { cluster: 'm3', reason: 'Unknown' },
  ])
})
