import { expect, test } from 'vitest'
import { factsOf } from './clusters'

test('capacity and taints of a cluster, if reported', () => {
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
  expect(factsOf({ columns })).toEqual({
    room: { cpu: { used: 1.5, whole: 12 }, pods: { used: 0, whole: 330 } },
    taints: [{ key: 'a', effect: 'NoSchedule' }, { key: 'b', value: 'c', effect: 'NoExecute' }],
    leaving: false,
  })
  expect(factsOf({ columns: { '.metadata.deletionTimestamp': '2026-01-01T00:00:00Z' } })).toEqual({ room: {}, taints: [], leaving: true })
})
