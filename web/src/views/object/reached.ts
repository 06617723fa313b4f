// Rows of the objects that depend on an object, as the search API's `blastradius` returns them.
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
  /** The object itself is first. */
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
  /** Kind and name of the object over which it was reached. */
  from: string
}

/** The objects in order of their distance. */
export function reachedRows({ nodes, edges, reached }: BlastRadius): ReachedRow[] {
  return reached.flatMap(({ node: nth, distance, edge }) => {
    const node = nodes[nth]
    const over = edges[edge]
    if (!node || !over) return []
    const other = nodes[over.from === nth ? over.to : over.from]
    const arrow = over.from === nth ? `${over.type} →` : `← ${over.type}`
    return [{ node, distance, type: arrow, via: over.via.join(', '), from: other ? `${other.kind} ${other.name}` : '' }]
  })
}

export const isSide = (text: string | undefined): text is Side => SIDES.some((side) => side === text)
