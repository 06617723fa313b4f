import { expect, test } from 'vitest'
import type { Cluster } from './karmada'
import { servesMetrics, totalUsage, usageByNode } from './nodeMetrics'

const metrics = [
  { metadata: { name: 'a' }, usage: { cpu: '250m', memory: '1Gi' } },
  { metadata: { name: 'b' }, usage: { cpu: '1500000000n', memory: '512Mi' } },
]

test('usage is in base units, by node', () => {
  expect([...usageByNode(metrics, 'cpu')]).toEqual([['a', 0.25], ['b', 1.5]])
  expect([...usageByNode([{ metadata: { name: 'c' }, usage: { cpu: '0' } }], 'cpu')]).toEqual([['c', 0]])
  expect([...usageByNode([{ metadata: { name: 'c' }, usage: { cpu: '0' } }], 'memory')]).toEqual([])
})

test.each([
  ['cpu', metrics, 1.75],
  ['memory', metrics, 1.5 * 2 ** 30],
  ['pods', metrics, undefined],
  ['cpu', [], undefined],
  ['memory', [{ metadata: { name: 'c' }, usage: { cpu: '0' } }], undefined],
] as const)('total usage of %s in %j is %s', (resource, nodes, expected) => expect(totalUsage(nodes, resource)).toBe(expected))

test.each([
  [[{ groupVersion: 'apps/v1' }, { groupVersion: 'metrics.k8s.io/v1beta1' }], true],
  [[{ groupVersion: 'apps/v1' }], false],
  [undefined, false],
])('a cluster with the API enablements %j serves metrics: %s', (apiEnablements, expected) => {
  const cluster: Cluster = { apiVersion: 'cluster.karmada.io/v1alpha1', kind: 'Cluster', metadata: { name: 'm1' }, spec: { syncMode: 'Push' }, status: apiEnablements ? { apiEnablements } : {} }
  expect(servesMetrics(cluster)).toBe(expected)
})
