import { expect, it } from 'vitest'
import type { ClusterStatus } from '../../api/types'
import { clustersToShow, fleetHealthOf } from './fleetHealth'

const cluster = (name: string, ready: ClusterStatus['ready'] = 'True'): ClusterStatus => ({ name, ready, objects: 0, pods: 0 })
const PODS = { name: 'pods', tone: 'bad' } as const
const EVICTING = { name: 'evicting', tone: 'busy' } as const
const WARNINGS = { name: 'warnings', tone: 'warn' } as const

it.each([
  [[cluster('a'), cluster('b')], [], 'good', 0],
  [[cluster('a'), cluster('b', 'Unknown')], [], 'bad', 1],
  [[cluster('a')], [PODS], 'bad', 0],
  [[cluster('a')], [WARNINGS], 'warn', 0],
  [[cluster('a')], [EVICTING], 'warn', 0],
  [[], [], 'idle', 0],
] as const)('%#: %s', (clusters, problems, tone, notReady) => {
  expect(fleetHealthOf(clusters, problems)).toEqual({ tone, notReady })
})

it('an incomplete result without problems is a warning', () => {
  expect(fleetHealthOf([cluster('a')], [], false)).toEqual({ tone: 'warn', notReady: 0 })
  expect(fleetHealthOf([cluster('a')], [PODS], false).tone).toBe('bad')
})

it.each([
  [[], ['c', 'a']],
  [['b'], ['b', 'c']],
  [['a', 'b'], ['a', 'b']],
  [['deleted'], ['c', 'a']],
])('favourites %j, then clusters that are not ready, are shown first', (favourites, expected) => {
  expect(clustersToShow([cluster('b'), cluster('a'), cluster('c', 'False')], 2, favourites).map(({ name }) => name)).toEqual(expected)
})
