// Table rows for a response of the search API's `blastradius`. Pure.
import type { Node } from './layout'

export const SIDES = ['dependents', 'dependencies'] as const
export type Side = (typeof SIDES)[number]

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

export interface ReachedRow {
  node: Node
  distance: number
  type: string
  /** Fields that state the edge. */
  via: string
  /** Kind and name of the object at the other end of the edge. */
  from: string
}

/** One row for each reached object, in the order of the response. */
export function reachedRows({ nodes, edges, reached }: BlastRadius): ReachedRow[] {
  return reached.flatMap(({ node: nth, distance, edge }) => {
    const node = nodes[nth]
    const pathEdge = edges[edge]
    if (!node || !pathEdge) return []
    const other = nodes[pathEdge.from === nth ? pathEdge.to : pathEdge.from]
    const arrow = pathEdge.from === nth ? `${pathEdge.type} →` : `← ${pathEdge.type}`
    return [{ node, distance, type: arrow, via: pathEdge.via.join(', '), from: other ? `${other.kind} ${other.name}` : '' }]
  })
}

export const isSide = (text: string | undefined): text is Side => SIDES.some((side) => side === text)
