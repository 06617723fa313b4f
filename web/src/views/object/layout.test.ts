import { expect, it } from 'vitest'
import { layoutGraph, isEvent, computeLevels, type Edge, type Graph, type Node } from './layout'

const node = (kind: string, name: string): Node => ({ cluster: 'm1', apiVersion: 'v1', kind, resource: `${kind.toLowerCase()}s`, name })

it('referenced objects are left, referring objects right', () => {
  // A ReplicaSet, its Deployment, its pods, and an object that a pod uses.
  const edges: Edge[] = [
    { from: 0, to: 1, relation: 'owner' },
    { from: 2, to: 0, relation: 'owner' },
    { from: 3, to: 0, relation: 'owner' },
    { from: 2, to: 4, relation: 'uses' },
  ]
  expect(computeLevels(6, edges)).toEqual([0, -1, 1, 1, 0, 0])
})

it('many objects of a kind are folded into a box', () => {
  const graph: Graph = {
    nodes: [node('ReplicaSet', 'web'), ...Array.from({ length: 10 }, (_, nth) => node('Pod', `web-${nth}`))],
    edges: Array.from({ length: 10 }, (_, nth) => ({ from: nth + 1, to: 0, relation: 'owner' as const })),
    more: false,
  }
  const folded = layoutGraph(graph, new Set())
  expect(folded.boxes.map((box) => box.members.length)).toEqual([1, 10])
  expect(folded.lines).toHaveLength(1)
  const opened = layoutGraph(graph, new Set([folded.boxes[1]!.key]))
  expect(opened.boxes).toHaveLength(11)
  expect(opened.lines).toHaveLength(10)
  const places = opened.boxes.map(({ x, y }) => `${x} ${y}`)
  expect(new Set(places).size).toBe(11)
})

it('events are one box, below other objects', () => {
  const graph: Graph = {
    nodes: [node('Pod', 'web'), node('Event', 'web.1'), node('Event', 'web.2'), node('Endpoints', 'web')],
    edges: [1, 2, 3].map((from) => ({ from, to: 0, relation: from === 3 ? ('uses' as const) : ('about' as const) })),
    more: false,
  }
  const { boxes } = layoutGraph(graph, new Set())
  expect(boxes.map(({ members }) => members)).toEqual([[0], [3], [1, 2]])
  const [, endpoints, events] = boxes
  expect(events!.y).toBeGreaterThan(endpoints!.y)
  expect(layoutGraph(graph, new Set([events!.key])).boxes.map(({ members }) => members)).toEqual([[0], [3], [1], [2]])
})

it('an Event of another group is a normal object', () => {
  expect([isEvent({ apiVersion: 'v1', kind: 'Event' }), isEvent({ apiVersion: 'events.k8s.io/v1', kind: 'Event' }), isEvent({ apiVersion: 'example.com/v1', kind: 'Event' })]).toEqual([true, true, false])
})
