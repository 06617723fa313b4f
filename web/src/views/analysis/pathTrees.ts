// Converts the result of the search API's `paths` to trees, in which paths share their common beginning. Has no side effects.
import type { Hit, SkippedCluster } from '../../api/types'
import { nodeOf, type TreeNode } from '../propagation/tree'

interface PathEdge {
  from: number
  to: number
  type: string
  /** Fields that state the edge. */
  via: string[]
}

export interface ObjectPaths {
  /** Objects of all paths. */
  nodes: Hit[]
  edges: PathEdge[]
  /** Indices of the nodes and edges of each path; a path has one more node than edges. */
  paths: { nodes: number[]; edges: number[] }[]
  total: number
  totalRelation: 'eq' | 'gte'
  notices: string[]
  skipped: SkippedCluster[]
}

/** One tree for each first object, in the order of the paths. */
export function pathTrees({ nodes, edges, paths }: Pick<ObjectPaths, 'nodes' | 'edges' | 'paths'>): TreeNode[] {
  const roots: TreeNode[] = []
  for (const path of paths) {
    let siblings = roots
    let id = ''
    for (const [step, nth] of path.nodes.entries()) {
      const hit = nodes[nth]
      const edgeIndex = path.edges[step - 1]
      const edge = edgeIndex === undefined ? undefined : edges[edgeIndex]
      if (!hit || (step > 0 && !edge)) break
      id = `${id} ${edgeIndex ?? ''}/${nth}`
      let node = siblings.find((sibling) => sibling.id === id)
      if (!node) {
        node = { ...nodeOf(hit), id, note: edge ? arrowTo(nth, edge) : '', title: edge?.via.join(', ') }
        siblings.push(node)
      }
      siblings = node.children
    }
  }
  return roots
}

/** The edge by which a path reaches a node: `USES →` in its direction, `← USES` against it. */
const arrowTo = (nth: number, { to, type }: PathEdge) => (to === nth ? `${type} →` : `← ${type}`)
