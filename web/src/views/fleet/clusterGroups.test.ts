import { expect, it } from 'vitest'
import { labelValues } from '../../api/clusterLabels'
import type { ClusterStatus } from '../../api/types'
import { groupAddress, groupClusters, labelKeyOf, parseGrouping, readGroupView, type Grouping, type GroupView } from './clusterGroups'

const cluster = (name: string, more: Partial<ClusterStatus> = {}): ClusterStatus => ({ name, ready: 'True', objects: 0, pods: 0, ...more })
const CLUSTERS = [
  cluster('a', { region: 'eu', provider: 'x', zones: ['eu-1', 'eu-2'] }),
  cluster('b', { region: 'us', provider: 'x', zones: ['us-1'], ready: 'Unknown' }),
  cluster('c', { region: 'us', provider: 'y', ready: 'False' }),
  cluster('d', { ready: 'False' }),
  cluster('e', { region: 'ap', provider: 'y', zones: ['ap-10', 'ap-10'] }),
  cluster('f', { region: 'ap', provider: 'x', zones: ['ap-9'] }),
]
const LABELS = new Map([['a', 'prod'], ['b', 'prod'], ['c', '']])

it.each<[Grouping, string[]]>([
  ['region', ['us: b,c 0/2 False', 'ap: e,f 2/2 True', 'eu: a 1/1 True', ': d 0/1 False']],
  ['provider', ['y: c,e 1/2 False', 'x: a,b,f 2/3 Unknown', ': d 0/1 False']],
  ['zone', ['us-1: b 0/1 Unknown', 'ap-9: f 1/1 True', 'ap-10: e 1/1 True', 'eu-1: a 1/1 True', 'eu-2: a 1/1 True', ': c,d 0/2 False']],
  ['label:env', ['prod: a,b 1/2 Unknown', ': c,d,e,f 2/4 False']],
])('groups by %s', (by, expected) => {
  const groups = groupClusters(CLUSTERS, by, LABELS).map(({ value, clusters, ready, worst }) => `${value}: ${clusters.map(({ name }) => name).join()} ${ready}/${clusters.length} ${worst}`)
  expect(groups).toEqual(expected)
})

it('a fleet without clusters has no groups', () => expect(groupClusters([], 'region', new Map())).toEqual([]))

it.each<[string | null, Grouping | undefined, string | undefined]>([
  ['region', 'region', undefined],
  ['label:app.kubernetes.io/tier', 'label:app.kubernetes.io/tier', 'app.kubernetes.io/tier'],
  ['label:', undefined, undefined],
  ['colour', undefined, undefined],
  [null, undefined, undefined],
])('the grouping %s', (text, by, key) => {
  expect(parseGrouping(text)).toBe(by)
  expect(labelKeyOf(by)).toBe(key)
})

it.each<[GroupView, string]>([
  [{ by: undefined, collapsed: [] }, '/fleet'],
  [{ by: 'region', collapsed: [] }, '/fleet?group=region'],
  [{ by: 'label:env', collapsed: ['a,b', '', 'c&d'] }, '/fleet?group=label%3Aenv&collapsed=a%2Cb&collapsed=&collapsed=c%26d'],
])('the groups %j are at %s', (view, address) => {
  expect(groupAddress(view)).toBe(address)
  expect(readGroupView(address.slice('/fleet'.length))).toEqual(view)
})

it('clusters without a label have no value', () => {
  const hits: Parameters<typeof labelValues>[0] = [{ name: 'a', columns: { 'label:env': 'prod' } }, { name: 'b', columns: {} }, { name: 'c' }, { name: 'd', columns: { 'label:env': '' } }]
  expect([...labelValues(hits, 'label:env')]).toEqual([['a', 'prod'], ['d', '']])
})
