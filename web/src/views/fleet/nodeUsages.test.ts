import { expect, test } from 'vitest'
import type { Node } from '../../api/karmada'
import { usageLevelOf } from '../../parts/usage'
import { nodeUsages } from './nodeUsages'

const node = (name: string, pods: string | undefined): Node => ({ apiVersion: 'v1', kind: 'Node', metadata: { name }, status: pods === undefined ? {} : { allocatable: { pods } } })

test('nodes are sorted by usage; nodes without allocatable pods are omitted', () => {
  const nodes = [node('a', '110'), node('b', '100'), node('c', undefined), node('d', '10')]
  const counts = [
    { value: 'a', count: 11 },
    { value: 'b', count: 90 },
    { value: 'd', count: 7 },
    { value: 'gone', count: 3 },
  ]
  expect(nodeUsages(nodes, counts)).toEqual([
    { node: 'b', pods: 90, capacity: 100, percent: 90, level: 'full' },
    { node: 'd', pods: 7, capacity: 10, percent: 70, level: 'high' },
    { node: 'a', pods: 11, capacity: 110, percent: 10, level: undefined },
  ])
})

test.each([
  [0, undefined],
  [0.69, undefined],
  [0.7, 'high'],
  [0.89, 'high'],
  [0.9, 'full'],
  [1, 'full'],
] as const)('a used fraction of %d has the level %s', (fraction, level) => expect(usageLevelOf(fraction)).toBe(level))
