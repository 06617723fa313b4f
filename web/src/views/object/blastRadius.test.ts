import { expect, test } from 'vitest'
import { computeLevels } from './layout'
import { isDirection, toGraph, toTableRows } from './blastRadius'

const node = (kind: string, name: string) => ({ cluster: 'm1', apiVersion: 'v1', kind, resource: `${kind.toLowerCase()}s`, name, uid: name })

test('rows contain the object from which they were reached', () => {
  const nodes = [node('Secret', 'db'), node('Pod', 'web-0'), node('EndpointSlice', 'web')]
  const edges = [
    { from: 1, to: 0, type: 'USES', via: ['spec.a', 'spec.b'] },
    { from: 2, to: 1, type: 'ROUTES_TO', via: [] },
  ]
  const reached = [
    { node: 1, distance: 1, edge: 0 },
    { node: 2, distance: 2, edge: 1 },
    { node: 9, distance: 3, edge: 1 },
  ]
  expect(toTableRows({ nodes, edges, reached, notices: [] }).map(({ node, distance, type, via, from }) => [node.name, distance, type, via, `${from?.kind} ${from?.name}`])).toEqual([
    ['web-0', 1, 'USES →', 'spec.a, spec.b', 'Secret db'],
    ['web', 2, 'ROUTES_TO →', '', 'Pod web-0'],
  ])
})

test('in the graph, an object is to the right of what it depends on', () => {
  const nodes = [node('Secret', 'db'), node('Deployment', 'web'), node('ReplicaSet', 'web-1'), node('Deployment', 'copy')]
  const edges = [
    { from: 1, to: 0, type: 'USES', via: [] },
    { from: 1, to: 2, type: 'OWNS', via: [] },
    { from: 1, to: 3, type: 'PROPAGATED_TO', via: [] },
  ]
  const graph = toGraph({ nodes, edges, reached: [], notices: [] })
  expect(graph.edges).toEqual([
    { from: 1, to: 0, relation: 'uses' },
    { from: 2, to: 1, relation: 'owner' },
    { from: 3, to: 1, relation: 'uses' },
  ])
  expect(computeLevels(nodes.length, graph.edges)).toEqual([0, 1, 2, 2])
})

test('only dependents and dependencies are directions', () => {
  expect([isDirection('dependents'), isDirection('dependencies'), isDirection('x'), isDirection(undefined)]).toEqual([true, true, false, false])
})
