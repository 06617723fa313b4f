import { expect, test } from 'vitest'
import type { Node } from '../../api/karmada'
import { usageLevelOf } from '../../parts/usage'
import { nodeUsages } from './nodeUsages'

const node = (name: string, pods: string | undefined): Node => ({ apiVersion: 'v1', kind: 'Node', metadata: { name }, status: pods === undefined ? {} : { allocatable: { pods, memory: '4Gi' } } })

test('nodes are sorted by usage; unknown amounts are not 0', () => {
  const nodes = [node('uncounted', '110'), node('idle', '110'), node('a', '110'), node('b', '100'), node('new', undefined), node('d', '10')]
  const counts = new Map([['idle', 0], ['a', 11], ['b', 90], ['new', 1], ['d', 7], ['gone', 3]])
  expect(nodeUsages(nodes, 'pods', counts)).toEqual([
    { node: 'b', usage: { used: 90, allocatable: 100, percent: 90, level: 'full' } },
    { node: 'd', usage: { used: 7, allocatable: 10, percent: 70, level: 'high' } },
    { node: 'a', usage: { used: 11, allocatable: 110, percent: 10, level: undefined } },
    { node: 'idle', usage: { used: 0, allocatable: 110, percent: 0, level: undefined } },
    { node: 'new' },
    { node: 'uncounted' },
  ])
})

test('quantities are compared in base units', () => {
  expect(nodeUsages([node('a', '110')], 'memory', new Map([['a', 2 ** 31]]))).toEqual([{ node: 'a', usage: { used: 2 ** 31, allocatable: 2 ** 32, percent: 50, level: undefined } }])
})

test.each([
  [0, undefined],
  [0.69, undefined],
  [0.7, 'high'],
  [0.89, 'high'],
  [0.9, 'full'],
  [1, 'full'],
] as const)('a used fraction of %d has the level %s', (fraction, level) => expect(usageLevelOf(fraction)).toBe(level))
