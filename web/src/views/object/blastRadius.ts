// Table rows and graph for a response of the search API's `blastradius`. Has no side effects.
import type { Edge, Graph, Node } from './layout'

/** Directions in which references are followed from the object. */
export const DIRECTIONS = ['dependents', 'dependencies'] as const
export type Direction = (typeof DIRECTIONS)[number]

interface PathEdge {
  from: number
  to: number
  type: string
  via: string[]
}

export interface BlastRadius {
  /** All objects; the first is the object of the request. */
  nodes: Node[]
  edges: PathEdge[]
  reached: { node: number; distance: number; edge: number }[]
  notices: string[]
}

export interface BlastRadiusRow {
  node: Node
  distance: number
  type: string
  /** Fields that state the edge. */
  via: string
  /** The object at the other end of the edge. */
  from: Node | undefined
}

/** One row for each reached object, in the order of the response. */
export function toTableRows({ nodes, edges, reached }: BlastRadius): BlastRadiusRow[] {
  return reached.flatMap(({ node: nth, distance, edge }) => {
    const node = nodes[nth]
    const pathEdge = edges[edge]
    if (!node || !pathEdge) return []
    const otherNode = nodes[pathEdge.from === nth ? pathEdge.to : pathEdge.from]
    const arrow = pathEdge.from === nth ? `${pathEdge.type} →` : `← ${pathEdge.type}`
    return [{ node, distance, type: arrow, via: pathEdge.via.join(', '), from: otherNode }]
  })
}

/** Types whose edges lead from the owner or template to the object that depends on it; the others lead to what an object depends on. */
const FROM_DEPENDENCY = new Set(['CONTAINS', 'OWNS', 'PROPAGATED_TO'])

/** The objects as a graph, in which what an object depends on is to its left. */
export function toGraph({ nodes, edges }: BlastRadius): Graph {
  return { nodes, edges: edges.map(graphEdge), more: false }
}

function graphEdge({ from, to, type }: PathEdge): Edge {
  const relation = type === 'OWNS' ? 'owner' : type === 'ABOUT' ? 'about' : 'uses'
  return FROM_DEPENDENCY.has(type) ? { from: to, to: from, relation } : { from, to, relation }
}

export const isDirection = (text: string | undefined): text is Direction => DIRECTIONS.some((direction) => direction === text)
