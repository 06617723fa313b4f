import { expect, test } from 'vitest'
import type { Quota } from '../../api/karmada'
import { uncountedUsage } from './uncountedUsage'

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
