import { expect, test } from 'vitest'
import { summarizeCluster } from './clusters'

test('a summary has the reported capacity and taints of a cluster', () => {
  const columns = {
    '.status.resourceSummary.allocatable.cpu': '12',
    '.status.resourceSummary.allocated.cpu': '500m',
    '.status.resourceSummary.allocating.cpu': '1',
    '.status.resourceSummary.allocatable.pods': '330',
    '.status.resourceSummary.allocated.memory': '1Gi',
    '.spec.taints[0].key': 'a',
    '.spec.taints[0].effect': 'NoSchedule',
    '.spec.taints[1].key': 'b',
    '.spec.taints[1].value': 'c',
    '.spec.taints[1].effect': 'NoExecute',
  }
  expect(summarizeCluster({ columns })).toEqual({
    usage: { cpu: { used: 1.5, total: 12 }, pods: { used: 0, total: 330 } },
    taints: [{ key: 'a', effect: 'NoSchedule' }, { key: 'b', value: 'c', effect: 'NoExecute' }],
    isBeingDeleted: false,
  })
  expect(summarizeCluster({ columns: { '.metadata.deletionTimestamp': '2026-01-01T00:00:00Z' } })).toEqual({ usage: {}, taints: [], isBeingDeleted: true })
})
