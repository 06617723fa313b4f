import { expect, test } from 'vitest'
import type { Quota } from '../../api/karmada'
import { uncounted } from './uncounted'

const quota = (total: string | undefined, ...members: string[]): Pick<Quota, 'spec' | 'status'> => ({
  spec: { overall: { cpu: '8' } },
  status: {
    overallUsed: total === undefined ? {} : { cpu: total },
    aggregatedStatus: members.map((cpu, nth) => ({ clusterName: `m${nth}`, used: { cpu } })),
  },
})

test.each([
  ['a pod of another writer', quota('1', '600m', '600m'), [{ resource: 'cpu', more: 0.2 }]],
  ['the same', quota('1200m', '600m', '600m'), []],
  ['fractions', quota('300m', '100m', '200m'), []],
  ['members without an assignment', quota('2', '1'), []],
  ['no total yet', quota(undefined, '1'), []],
] as const)('%s', (_, given, expected) => {
  const found = uncounted(given)
  expect(found.map(({ resource }) => resource)).toEqual(expected.map(({ resource }) => resource))
  found.forEach(({ more }, nth) => expect(more).toBeCloseTo(expected[nth]!.more))
})
