import { expect, test } from 'vitest'
import { isSide, reachedRows } from './reached'

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
  expect(reachedRows({ nodes, edges, reached, notices: [] }).map(({ node, distance, type, via, from }) => [node.name, distance, type, via, from])).toEqual([
    ['web-0', 1, 'USES →', 'spec.a, spec.b', 'Secret db'],
    ['web', 2, 'ROUTES_TO →', '', 'Pod web-0'],
  ])
})

test('only dependents and dependencies are sides', () => {
  expect([isSide('dependents'), isSide('dependencies'), isSide('x'), isSide(undefined)]).toEqual([true, true, false, false])
})
