import { expect, test } from 'vitest'
import { amountOfNode, parseNodeRequests, podsOfNodesQuery, type NodeRequestsResponse } from './nodeRequests'

const RESPONSE: NodeRequestsResponse = {
  totalRelation: 'eq',
  groups: {
    field: 'node',
    values: [
      { value: 'n1', count: 5, sums: { 'cpu.req': 3250, 'mem.req': 2 ** 31 } },
      { value: 'n2', count: 1, sums: { 'cpu.req': 0, 'mem.req': null } },
      { value: 'n3', count: 2 },
    ],
    more: 0,
  },
  skipped: [],
}
const withMore = (more: number): Partial<NodeRequestsResponse> => ({ groups: { field: 'node', values: RESPONSE.groups?.values ?? [], more } })
const amountIn = (response: Partial<NodeRequestsResponse>, resource: 'pods' | 'cpu' | 'memory', node: string) => amountOfNode(parseNodeRequests('member1', { ...RESPONSE, ...response }), resource, node)

test('finished pods occupy nothing', () => expect(podsOfNodesQuery('member1')).toBe('kind:pod cluster:member1 -phase:Succeeded,Failed group:node'))

test.each([
  ['pods', 'n1', 5],
  ['cpu', 'n1', 3.25],
  ['memory', 'n1', 2 ** 31],
  ['cpu', 'n2', 0],
  ['memory', 'n2', undefined],
  ['pods', 'n3', 2],
  ['cpu', 'n3', undefined],
  ['cpu', 'empty', 0],
  ['pods', 'empty', 0],
] as const)('%s of the node %s: %s', (resource, node, expected) => expect(amountIn({}, resource, node)).toBe(expected))

test.each<[string, Partial<NodeRequestsResponse>, number | undefined]>([
  ['there are more nodes than groups', withMore(7), undefined],
  ['a limit of the search was reached', { totalRelation: 'gte' }, undefined],
  ['objects of the cluster are missing', { skipped: [{ cluster: 'member1', reason: 'its first list is in progress', missing: true }] }, undefined],
  ['objects of the cluster are outdated', { skipped: [{ cluster: 'member1', reason: 'connection refused', ageSeconds: 90, missing: false }] }, 0],
  ['objects of another cluster are missing', { skipped: [{ cluster: 'member2', reason: 'its first list is in progress', missing: true }] }, 0],
  ['no pod matches', { groups: { field: 'node', values: [], more: 0 } }, 0],
  ['the response has no groups', { groups: undefined }, undefined],
])('the amount of a node without a group, if %s: %s', (_, response, expected) => {
  expect(amountIn(response, 'cpu', 'empty')).toBe(expected)
  expect(amountIn(response, 'pods', 'empty')).toBe(expected)
})

test('an incomplete response names its cluster', () => {
  const skipped = [
    { cluster: 'member1', reason: 'connection refused', ageSeconds: 90 },
    { cluster: 'member2', reason: 'its first list is in progress' },
  ]
  const requests = parseNodeRequests('member1', { ...RESPONSE, totalRelation: 'gte', skipped })
  expect({ isLowerBound: requests.isLowerBound, reasons: requests.skipped.map(({ reason }) => reason) }).toEqual({ isLowerBound: true, reasons: ['connection refused'] })
})
