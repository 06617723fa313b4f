// Reduces a topology tree: to its problems, and by combining clusters of one state to one node. Has no side effects.
import type { TreeNode } from './tree'

/** Maximum number of collapsed clusters of one state that are shown individually. */
const MAX_SINGLE_CLUSTERS = 8

const isProblem = ({ health, edge }: TreeNode) => health === 'bad' || edge !== undefined

/** Keeps the root, nodes with problems, and the nodes above them. */
export function onlyProblems(root: TreeNode): TreeNode {
  const keepProblems = (node: TreeNode): TreeNode[] => {
    const children = node.children.flatMap(keepProblems)
    return children.length > 0 || isProblem(node) ? [{ ...node, children }] : []
  }
  return { ...root, children: root.children.flatMap(keepProblems) }
}

/** Combines many collapsed clusters of one state to one node with their number; `query` returns the query for the object in these clusters. */
export function groupClusters(root: TreeNode, isOpen: (cluster: string) => boolean, query: (clusters: string[]) => string): TreeNode {
  const groups = new Map<string, TreeNode[]>()
  for (const node of root.children) {
    if (node.kind !== 'Cluster' || node.cluster === undefined || isOpen(node.cluster)) continue
    const key = `${node.health} ${node.edge ?? ''}`
    groups.set(key, [...(groups.get(key) ?? []), node])
  }
  const largeGroups = [...groups].filter(([, members]) => members.length > MAX_SINGLE_CLUSTERS)
  const grouped = new Set(largeGroups.flatMap(([, members]) => members))
  const groupNode = ([key, members]: [string, TreeNode[]]): TreeNode[] => {
    const [first] = members
    const clusters = members.map(({ name }) => name)
    return first ? [{ id: `clusters ${key}`, kind: 'Clusters', name: String(members.length), health: first.health, edge: first.edge, query: query(clusters), children: [] }] : []
  }
  const children = root.children.filter((node) => !grouped.has(node)).map((node) => groupClusters(node, isOpen, query))
  return { ...root, children: [...children, ...largeGroups.flatMap(groupNode)] }
}

/** The first `limit` clusters whose name contains a text, and the number of further ones. */
export function filterClusters(clusters: readonly string[], text: string, limit: number): { shown: string[]; more: number } {
  const pattern = text.trim().toLowerCase()
  const matches = clusters.filter((cluster) => cluster.toLowerCase().includes(pattern))
  return { shown: matches.slice(0, limit), more: Math.max(0, matches.length - limit) }
}
