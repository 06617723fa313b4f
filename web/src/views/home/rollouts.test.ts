import { expect, it } from 'vitest'
import type { Hit } from '../../api/types'
import { ROLLOUT_COLUMNS, rolloutOf, rolloutsQuery } from './rollouts'

const SPEC = { '.metadata.generation': '2', '.status.observedGeneration': '2', '.spec.replicas': '3' }
const DAEMON = { '.metadata.generation': '2', '.status.observedGeneration': '2', '.status.desiredNumberScheduled': '3' }
const REVISIONS = { '.status.currentRevision': 'a', '.status.updateRevision': 'b' }

it.each([
  ['Deployment', 'that is complete', { ...SPEC, '.status.replicas': '3', '.status.updatedReplicas': '3', '.status.conditions[*].reason': 'NewReplicaSetAvailable, MinimumReplicasAvailable' }, undefined],
  ['Deployment', 'with old pods', { ...SPEC, '.status.replicas': '4', '.status.updatedReplicas': '3' }, [3, 3]],
  ['Deployment', 'with new pods that are not available', { ...SPEC, '.status.replicas': '3', '.status.updatedReplicas': '3', '.status.conditions[*].reason': 'ReplicaSetUpdated' }, [3, 3]],
  ['Deployment', 'that the controller has not observed', { ...SPEC, '.status.observedGeneration': '1', '.status.replicas': '3', '.status.updatedReplicas': '3' }, [3, 3]],
  ['Deployment', 'that is not propagated', { '.metadata.generation': '1', '.spec.replicas': '2' }, undefined],
  ['Deployment', 'without replicas', { ...SPEC, '.spec.replicas': '0', '.status.conditions[*].reason': 'ReplicaSetUpdated' }, undefined],
  ['StatefulSet', 'with two revisions', { ...SPEC, ...REVISIONS, '.status.updatedReplicas': '1' }, [1, 3]],
  ['StatefulSet', 'that is complete', { ...SPEC, ...REVISIONS, '.status.currentRevision': 'b', '.status.updatedReplicas': '3' }, undefined],
  ['StatefulSet', 'whose partition is updated', { ...SPEC, ...REVISIONS, '.status.updatedReplicas': '1', '.spec.updateStrategy.rollingUpdate.partition': '2' }, undefined],
  ['StatefulSet', 'whose partition is not updated', { ...SPEC, ...REVISIONS, '.spec.updateStrategy.rollingUpdate.partition': '2' }, [0, 3]],
  ['StatefulSet', 'that is updated on deletion', { ...SPEC, ...REVISIONS, '.spec.updateStrategy.type': 'OnDelete' }, undefined],
  ['DaemonSet', 'with old pods', { ...DAEMON, '.status.updatedNumberScheduled': '1' }, [1, 3]],
  ['DaemonSet', 'that is complete', { ...DAEMON, '.status.updatedNumberScheduled': '3' }, undefined],
])('the rollout of a %s %s', (kind, _, columns, expected) => {
  expect(Object.keys(columns).filter((name) => !ROLLOUT_COLUMNS.includes(name))).toEqual([])
  const rollout = rolloutOf({ kind, columns } as unknown as Hit)
  expect(rollout && [rollout.updated, rollout.desired]).toEqual(expected)
})

it.each([
  [[], undefined],
  [[undefined], undefined],
  [['8c1e-01'], 'uid:8c1e-01 sort:-changed'],
  [['8c1e-01', undefined, 'f0'], 'uid:8c1e-01,f0 sort:-changed'],
] as [(string | undefined)[], string | undefined][])('the query for rollouts with the UIDs %j is %s', (uids, query) => {
  expect(rolloutsQuery(uids.map((uid) => ({ hit: { uid } as unknown as Hit, updated: 0, desired: 1 })))).toBe(query)
})
