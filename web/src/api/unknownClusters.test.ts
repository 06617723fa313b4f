import { expect, it } from 'vitest'
import type { Policy } from './karmada'
import { unknownClusters } from './unknownClusters'

const KNOWN = new Set(['m1', 'm2'])

it.each<[string, Policy['spec'], string[]]>([
  ['one affinity', { placement: { clusterAffinity: { clusterNames: ['m1', 'gone'] } } }, ['gone']],
  ['several affinities', { placement: { clusterAffinities: [{ affinityName: 'a', clusterNames: ['old', 'm2'] }, { affinityName: 'b', clusterNames: ['old', 'new'] }] } }, ['old', 'new']],
  ['overrides', { overrideRules: [{ targetCluster: { clusterNames: ['m3'] }, overriders: {} }, { overriders: {} }] }, ['m3']],
  ['a taint policy', { targetClusters: { clusterNames: ['m3', 'm1'] } }, ['m3']],
  ['excluded clusters are not missed', { placement: { clusterAffinity: { exclude: ['gone'] } } }, []],
  ['every cluster', {}, []],
])('%s', (_, spec, unknown) => expect(unknownClusters({ spec }, KNOWN)).toEqual(unknown))

it('nothing is missing while the clusters are unknown', () => {
  const policy = { spec: { placement: { clusterAffinity: { clusterNames: ['gone'] } } } }
  expect([unknownClusters(policy, undefined), unknownClusters(policy, new Set())]).toEqual([[], []])
})
