import { expect, test } from 'vitest'
import { parseNodeRequests } from '../../api/nodeRequests'
import { nodeMeasures } from './nodeMeasures'

const requests = (more: number) =>
  parseNodeRequests('m', { totalRelation: 'eq', skipped: [], groups: { field: 'node', values: [{ value: 'a', count: 2, sums: { 'cpu.req': 1500, 'mem.req': 1024 } }], more } })
const metrics = [{ metadata: { name: 'b' }, usage: { cpu: '250m', memory: '1Ki' } }]

test.each([
  ['all', requests(0), metrics, { 'cpu-requested': [['a', 1.5], ['b', 0]], 'memory-requested': [['a', 1024], ['b', 0]], cpu: [['b', 0.25]], memory: [['b', 1024]], pods: [['a', 2], ['b', 0]] }],
  ['requests of some nodes', requests(3), undefined, { 'cpu-requested': [['a', 1.5]], 'memory-requested': [['a', 1024]], pods: [['a', 2]] }],
  ['used amounts only, for users who may not list pods', undefined, metrics, { cpu: [['b', 0.25]], memory: [['b', 1024]] }],
  ['a sum that the response lacks', parseNodeRequests('m', { totalRelation: 'eq', skipped: [], groups: { field: 'node', values: [{ value: 'a', count: 2, sums: { 'cpu.req': 0 } }], more: 0 } }), undefined, { 'cpu-requested': [['a', 0], ['b', 0]], 'memory-requested': [['b', 0]], pods: [['a', 2], ['b', 0]] }],
  ['no measure without metrics', undefined, [], {}],
])('measures: %s', (_, requests, metrics, expected) => {
  const measures = nodeMeasures(['a', 'b'], requests, metrics)
  expect(Object.fromEntries(measures.map(({ name, amounts }) => [name, [...amounts]]))).toEqual(expected)
  expect(measures.map(({ name }) => name)).toEqual(Object.keys(expected))
})
