import { expect, test } from 'vitest'
import type { Quota } from '../../api/karmada'
import { uncountedUsage, usedAmount } from './uncountedUsage'

const quota = (total: string | undefined, ...members: string[]): Pick<Quota, 'spec' | 'status'> => ({
  spec: { overall: { cpu: '8' } },
  status: {
    overallUsed: total === undefined ? {} : { cpu: total },
    aggregatedStatus: members.map((cpu, nth) => ({ clusterName: `m${nth}`, used: { cpu } })),
  },
})

test.each([
  ['a pod of another writer', quota('1', '600m', '600m'), [{ resource: 'cpu', excess: 0.2 }]],
  ['equal sums of the members and of the quota', quota('1200m', '600m', '600m'), []],
  ['decimal fractions', quota('300m', '100m', '200m'), []],
  ['members without an assignment', quota('2', '1'), []],
  ['no total', quota(undefined, '1'), []],
] as const)('%s', (_, quota, expected) => {
  const usages = uncountedUsage(quota)
  expect(usages.map(({ resource }) => resource)).toEqual(expected.map(({ resource }) => resource))
  usages.forEach(({ excess }, nth) => expect(excess).toBeCloseTo(expected[nth]!.excess))
})

test.each([
  ['in use', { hard: { cpu: '8' }, used: { cpu: '500m' } }, 0.5],
  ['in use, with a limit that the status lacks', { used: { cpu: '1' } }, 1],
  ['not in use', { hard: { cpu: '8' }, used: { memory: '1Gi' } }, 0],
  ['not in use, like all others', { hard: { cpu: '8' } }, 0],
  ['not counted yet', { hard: { memory: '1Gi' }, used: { memory: '1Gi' } }, undefined],
  ['without a status', {}, undefined],
])('the used amount of a resource that is %s', (_, status, expected) => expect(usedAmount('cpu', status)).toBe(expected))
