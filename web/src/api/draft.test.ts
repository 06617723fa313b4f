import { expect, test } from 'vitest'
import { parse } from 'yaml'
import { POLICY_KINDS, type Policy } from './karmada'
import { fromFragment, SKELETONS, toFragment, withoutCluster, withRemovals } from './draft'

test('a draft is restored from its fragment', async () => {
  const text = 'kind: ConfigMap\n# größer ✓\n'
  const fragment = await toFragment(text)
  expect(fragment).toMatch(/^draft=[\w-]+$/)
  expect(await fromFragment(`#${fragment}`)).toBe(text)
  expect(await fromFragment('#token=x')).toBeUndefined()
  expect(await fromFragment('#draft=!!')).toBeUndefined()
})

test('a draft that is too long is not truncated', async () => {
  const noise = Array.from({ length: 20_000 }, (_, n) => ((n * 7919) % 10_007).toString(36)).join('')
  expect(await toFragment(noise)).toBeUndefined()
})

test('removed fields are deleted, absent server fields are not', () => {
  const stored = { metadata: { name: 'a', uid: 'u', annotations: { x: '1', y: '2' } }, spec: { a: 1, list: [1, 2] }, status: {} }
  const edited = { metadata: { name: 'a', annotations: { x: '1' } }, spec: { list: [1] } }
  expect(withRemovals(stored, edited)).toEqual({ metadata: { name: 'a', annotations: { x: '1', y: null } }, spec: { list: [1], a: null } })
})

type Placement = NonNullable<Policy['spec']['placement']>

test.each<[string, Placement | undefined, Placement]>([
  ['without a placement', undefined, { clusterAffinity: { exclude: ['east'] } }],
  ['by names', { clusterAffinity: { clusterNames: ['east', 'west'] } }, { clusterAffinity: { clusterNames: ['east', 'west'], exclude: ['east'] } }],
  ['that excludes it already', { clusterAffinity: { exclude: ['north', 'east'] } }, { clusterAffinity: { exclude: ['north', 'east'] } }],
  [
    'with affinity terms',
    { clusterAffinities: [{ affinityName: 'a', clusterNames: ['east'] }, { affinityName: 'b', exclude: ['north'] }], replicaScheduling: { replicaSchedulingType: 'Divided' } },
    { clusterAffinities: [{ affinityName: 'a', clusterNames: ['east'], exclude: ['east'] }, { affinityName: 'b', exclude: ['north', 'east'] }], replicaScheduling: { replicaSchedulingType: 'Divided' } },
  ],
])('a policy %s leaves a cluster', (_, placement, expected) => {
  const policy: Policy = { apiVersion: 'policy.karmada.io/v1alpha1', kind: 'PropagationPolicy', metadata: { name: 'web' }, spec: { ...(placement && { placement }), priority: 3 } }
  expect(withoutCluster(policy, 'east')).toEqual({ ...policy, spec: { priority: 3, placement: expected } })
})

test('each kind has a skeleton', () => {
  for (const { kind, apiVersion, namespaced } of POLICY_KINDS) {
    const skeleton = parse(SKELETONS[kind] ?? '') as { kind: string; apiVersion: string; metadata: { namespace?: string } }
    expect(skeleton).toMatchObject({ kind, apiVersion })
    expect(skeleton.metadata.namespace !== undefined).toBe(namespaced)
  }
})

test.each(Object.entries(SKELETONS))('a new %s is a valid object', (kind, text) => {
  const object = parse(text) as { kind: string; metadata: { name: string } }
  expect(object.kind).toBe(kind)
  // A placeholder that is not a valid name would open the editor with an error.
  expect(object.metadata.name).toMatch(/^[a-z0-9]([-a-z0-9]*[a-z0-9])?$/)
  expect(text).not.toMatch(/: [A-Z]{2,}$/m)
})
