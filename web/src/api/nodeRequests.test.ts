import { expect, test } from 'vitest'
import { amountOfNode, parseNodeRequests, podsOfNodesQuery, type NodeRequestsResponse } from './nodeRequests'

const response = (more: number): NodeRequestsResponse => ({
  totalRelation: 'eq',
  groups: {
    field: 'node',
    values: [
      { value: 'n1', count: 5, sums: { 'cpu.req': 3250, 'mem.req': 2 ** 31 } },
      { value: 'n2', count: 1, sums: { 'cpu.req': 0, 'mem.req': 0 } },
    ],
    more,
  },
  skipped: [
    { cluster: 'member1', reason: 'connection refused', ageSeconds: 90 },
    { cluster: 'member2', reason: 'its first list is in progress' },
  ],
})

test('finished pods occupy nothing', () => expect(podsOfNodesQuery('member1')).toBe('kind:pod cluster:member1 -phase:Succeeded,Failed group:node'))

test.each([
  ['pods', 'n1', 0, 5],
  ['cpu', 'n1', 0, 3.25],
  ['memory', 'n1', 0, 2 ** 31],
  ['cpu', 'n2', 0, 0],
  ['cpu', 'empty', 0, 0],
  ['cpu', 'empty', 7, undefined],
  ['pods', 'n2', 7, 1],
] as const)('%s of the node %s, with %d more nodes: %s', (resource, node, more, expected) => {
  expect(amountOfNode(parseNodeRequests('member1', response(more)), resource, node)).toBe(expected)
})

test('an incomplete response names its cluster', () => {
  const { isLowerBound, skipped } = parseNodeRequests('member1', { ...response(0), totalRelation: 'gte' })
  expect({ isLowerBound, reasons: skipped.map(({ reason }) => reason) }).toEqual({ isLowerBound: true, reasons: ['connection refused'] })
})

test('a cluster without pods has nodes without requests', () => {
  expect(amountOfNode(parseNodeRequests('member1', { totalRelation: 'eq', skipped: [] }), 'memory', 'n1')).toBe(0)
})
