// Reduces a topology to what fits a page: problems alone, and clusters of one state as one node. Pure.
import type { TreeNode } from './tree'

/** Number of collapsed clusters of one state that are shown individually. */
const SINGLE = 8

const isProblem = ({ health, edge }: TreeNode) => health === 'bad' || edge !== undefined

/** The ways to problems; the root stays. */
export function onlyProblems(root: TreeNode): TreeNode {
  const keep = (node: TreeNode): TreeNode[] => {
    const children = node.children.flatMap(keep)
    return children.length > 0 || isProblem(node) ? [{ ...node, children }] : []
  }
  return { ...root, children: root.children.flatMap(keep) }
}

/** Many collapsed clusters of one state as one node with their number; `query` finds the object in these clusters. */
export function gathered(root: TreeNode, isOpen: (cluster: string) => boolean, query: (clusters: string[]) => string): TreeNode {
  const groups = new Map<string, TreeNode[]>()
  for (const node of root.children) {
    if (node.kind !== 'Cluster' || node.cluster === undefined || isOpen(node.cluster)) continue
    const key = `${node.health} ${node.edge ?? ''}`
    groups.set(key, [...(groups.get(key) ?? []), node])
  }
  const many = [...groups].filter(([, members]) => members.length > SINGLE)
  const gone = new Set(many.flatMap(([, members]) => members))
  const one = ([key, members]: [string, TreeNode[]]): TreeNode[] => {
    const [first] = members
    const clusters = members.map(({ name }) => name)
    return first ? [{ id: `clusters ${key}`, kind: 'Clusters', name: String(members.length), health: first.health, edge: first.edge, query: query(clusters), children: [] }] : []
  }
  const children = root.children.filter((node) => !gone.has(node)).map((node) => gathered(node, isOpen, query))
  return { ...root, children: [...children, ...many.flatMap(one)] }
}

/** The clusters whose name contains a text, at most a number of them, and how many more there are. */
export function clustersNamed(clusters: readonly string[], text: string, most: number): { shown: string[]; more: number } {
  const wanted = text.trim().toLowerCase()
  const found = clusters.filter((cluster) => cluster.toLowerCase().includes(wanted))
  return { shown: found.slice(0, most), more: Math.max(0, found.length - most) }
}
