import { expect, test } from 'vitest'
import { referenceText, reviewSpec, type Action } from './access'

test.each<[Action, object]>([
  [{ verb: 'get', resource: 'secrets', namespace: 'shop' }, { resourceAttributes: { verb: 'get', resource: 'secrets', namespace: 'shop' } }],
  [{ verb: 'update', resource: 'deployments.apps/scale', name: 'web' }, { resourceAttributes: { verb: 'update', group: 'apps', resource: 'deployments', subresource: 'scale', name: 'web' }, namespaces: ['*'] }],
  [{ verb: 'list', resource: 'roles.rbac.authorization.k8s.io', namespace: '' }, { resourceAttributes: { verb: 'list', group: 'rbac.authorization.k8s.io', resource: 'roles' }, namespaces: ['*'] }],
  [{ verb: 'get', resource: '/metrics', namespace: 'shop' }, { nonResourceAttributes: { verb: 'get', path: '/metrics' } }],
])('%j has the review spec %j', (action, spec) => expect(reviewSpec(action)).toEqual(spec))

test.each([
  [undefined, '–'],
  [{ kind: 'Group', name: 'sre' }, 'Group sre'],
  [{ kind: 'Role', namespace: 'shop', name: 'secrets' }, 'Role shop/secrets'],
])('%j is shown as %s', (reference, text) => expect(referenceText(reference)).toBe(text))
