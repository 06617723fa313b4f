// Topology tree of a template (policy, binding, clusters, Works, objects, pods), and its layout. Has no side effects.
import { isKind, qualifiedName } from '../../api/client'
import type { ObjectReference } from '../../api/karmada'
import type { Explanation, PolicyName, Target, Template } from '../../api/propagation'
import { quote } from '../../api/query'
import type { FacetValue, Hit } from '../../api/types'
import { toneOf } from '../../parts/status'

export type Health = 'good' | 'bad' | 'unknown'
/** Synchronization of a Work with its member. A suspended one can have been applied before. */
export type SyncState = 'Applied' | 'NotApplied' | 'Suspended'

export interface TreeNode {
  id: string
  kind: string
  name: string
  cluster?: string | undefined
  note?: string | undefined
  /** Details for the tooltip and for screen readers. */
  title?: string | undefined
  health: Health
  /** Why changes do not reach the node through the edge from its parent. */
  edge?: 'suspended' | 'failing' | undefined
  policy?: PolicyName | undefined
  /** The Work of the node, and its state. */
  work?: (ObjectReference & { sync: SyncState }) | undefined
  /** The object of the node, if it is a hit. */
  object?: Hit | undefined
  query?: string | undefined
  children: TreeNode[]
}

/** Maximum number of pods of one state that are shown individually; more are one node with their number. */
const MAX_SINGLE_PODS = 4

/** Health by the tone of a state. A state in progress is not healthy yet. */
export function healthOf(status: string | undefined): Health {
  const tone = toneOf(status)
  if (tone === 'good') return 'good'
  return tone === 'idle' || status === 'Unknown' ? 'unknown' : 'bad'
}

export interface MemberGraph {
  nodes: Hit[]
  edges: { from: number; to: number; relation: string }[]
  /** True if there are more objects than those listed. */
  more: boolean
}

/** Numbers of all pods of an object, for a graph that does not list all of them. */
export interface PodCounts {
  /** Query for these pods. */
  query: string
  total: number
  states: readonly FacetValue[]
}

/** Query for the pods of a template's object in a cluster: its own, and those of its ReplicaSets and Jobs. */
export function memberPodsQuery({ apiVersion, resource, namespace, name }: Template, cluster: string): string {
  const namespaceTerm = namespace ? ` ns:=${quote(namespace)}` : ''
  return `kind:pod cluster:=${quote(cluster)}${namespaceTerm} owner:${quote(`${qualifiedName(resource, apiVersion)}/${name}`)} depth:3`
}

/**
 * Tree of an object and its dependents in a member; many pods of one state are one node. With `podCounts`, all pods are such nodes below the
 * object, so that none is missing. Undefined if the object is not in the graph.
 */
export function buildMemberTree(graph: MemberGraph, isRoot: (hit: Hit) => boolean, podCounts?: PodCounts): TreeNode | undefined {
  const root = graph.nodes.findIndex(isRoot)
  if (root < 0) return undefined
  const children = new Map<number, number[]>()
  for (const { from, to, relation } of graph.edges) {
    if (relation === 'owner') children.set(to, [...(children.get(to) ?? []), from])
  }
  const buildNode = (nth: number, ancestors: ReadonlySet<number>): TreeNode => {
    const hit = graph.nodes[nth]!
    const childNodes = (children.get(nth) ?? []).filter((child) => !ancestors.has(child)).map((child) => buildNode(child, new Set([...ancestors, nth])))
    return { ...nodeOf(hit), children: groupPods(childNodes, hit) }
  }
  const tree = buildNode(root, new Set())
  return podCounts === undefined || podCounts.total === 0 ? tree : withPodCounts(tree, podCounts)
}

const HEALTH_ORDER: Record<Health, number> = { bad: 0, unknown: 1, good: 2 }

/** Replaces the pods of a tree by one node per state below its root, failing ones first. */
function withPodCounts(root: TreeNode, { query, total, states }: PodCounts): TreeNode {
  const withoutPods = (node: TreeNode): TreeNode => ({ ...node, children: node.children.filter(({ kind }) => kind !== 'Pod').map(withoutPods) })
  const stateNode = (name: string, count: number, stateQuery: string, health: Health): TreeNode => ({
    id: `${root.id} pods ${name}`,
    kind: 'Pod',
    name: `${count} × ${name}`,
    cluster: root.cluster,
    health,
    query: stateQuery,
    children: [],
  })
  const nodes = states.map(({ value, count }) => stateNode(value, count, `${query} status:=${quote(value)}`, healthOf(value)))
  const restCount = total - states.reduce((sum, { count }) => sum + count, 0)
  // Counts list a limited number of states.
  const rest = restCount > 0 ? [stateNode('…', restCount, query, 'unknown')] : []
  const sorted = [...nodes, ...rest].sort((a, b) => HEALTH_ORDER[a.health] - HEALTH_ORDER[b.health])
  const tree = withoutPods(root)
  return { ...tree, children: [...sorted, ...tree.children] }
}

export function nodeOf(hit: Hit): TreeNode {
  const desired = hit.ready?.split('/')
  const health = !isKind(hit, '', 'Pod') && desired ? (desired[0] === desired[1] ? 'good' : 'bad') : healthOf(hit.status)
  return {
    id: `${hit.cluster}/${hit.apiVersion}/${hit.resource}/${hit.namespace ?? ''}/${hit.name}`,
    kind: hit.kind,
    name: hit.name,
    cluster: hit.cluster,
    note: [hit.ready, hit.status].filter(Boolean).join(' '),
    health,
    object: hit,
    children: [],
  }
}

function groupPods(nodes: TreeNode[], parent: Hit): TreeNode[] {
  const leaves = nodes.filter(({ children, object }) => children.length === 0 && object !== undefined && isKind(object, '', 'Pod'))
  const groups = new Map<string, TreeNode[]>()
  for (const leaf of leaves) {
    const status = leaf.object?.status ?? ''
    groups.set(status, [...(groups.get(status) ?? []), leaf])
  }
  const largeGroups = [...groups].filter(([, members]) => members.length > MAX_SINGLE_PODS)
  const grouped = new Set(largeGroups.flatMap(([, members]) => members))
  const namespaceTerm = parent.namespace ? ` ns:${parent.namespace}` : ''
  return [
    ...nodes.filter((node) => !grouped.has(node) && !isEmptyReplicaSet(node)),
    ...largeGroups.map(([status, members]): TreeNode => ({
      id: `${members[0]!.id} and others`,
      kind: 'Pod',
      name: `${members.length} × ${status || 'Pod'}`,
      cluster: parent.cluster,
      health: healthOf(status),
      query: `kind:pod cluster:${parent.cluster}${namespaceTerm} status:"${status}" owner:${qualifiedName(parent.kind.toLowerCase(), parent.apiVersion)}/${parent.name} depth:2`,
      children: [],
    })),
  ]
}

/** True for a ReplicaSet without replicas, as old revisions of a Deployment have it. */
const isEmptyReplicaSet = ({ object, children }: TreeNode) => object !== undefined && isKind(object, 'apps', 'ReplicaSet') && children.length === 0 && /^0\/0$|^$/.test(object.ready ?? '')

/** Health of a target. A copy that the member reports as healthy can have fewer ready replicas than assigned, and a suspended one can be outdated. */
function healthOfTarget({ applied, health, replicas }: Target, member: TreeNode | undefined, isSuspended: boolean): Health {
  const readyReplicas = member?.object?.ready?.split('/')[0]
  if (!applied || health === 'Unhealthy' || (replicas !== undefined && readyReplicas !== undefined && Number(readyReplicas) < replicas)) return 'bad'
  return isSuspended || health !== 'Healthy' ? 'unknown' : 'good'
}

/** Tree of a template. `members` are the trees of its objects by expanded cluster; other clusters have no child nodes. */
export function buildTree(explanation: Explanation, members: ReadonlyMap<string, TreeNode | undefined>): TreeNode {
  const { template, policy, binding, targets, waiting } = explanation
  const isSuspendedEverywhere = waiting.some(({ cause, cluster }) => SUSPENDED_CAUSE.test(cause) && cluster === undefined)
  const clusterNode = (target: Target): TreeNode => {
    const member = members.get(target.cluster)
    const isSuspended = isSuspendedEverywhere || waiting.some(({ cause, cluster }) => SUSPENDED_CAUSE.test(cause) && cluster === target.cluster)
    const isFailing = !target.applied || waiting.some(({ cause, cluster }) => FAILING_CAUSES.has(cause) && cluster === target.cluster)
    const edge: TreeNode['edge'] = isSuspended ? 'suspended' : isFailing ? 'failing' : undefined
    const memberNodes = member ? [{ ...member, edge }] : []
    const isDispatchingSuspended = waiting.some(({ cause, cluster }) => cause === 'DispatchingSuspended' && (cluster === undefined || cluster === target.cluster))
    return {
      id: `cluster ${target.cluster}`,
      kind: 'Cluster',
      name: target.cluster,
      cluster: target.cluster,
      note: target.placed === 'Scheduled' ? formatReplicas(member?.object?.ready, target.replicas) : target.placed,
      edge,
      health: healthOfTarget(target, member, isSuspended),
      children: target.work && members.has(target.cluster) ? [{ ...workNode(target.work, target, isDispatchingSuspended), edge, children: memberNodes }] : memberNodes,
    }
  }
  const clusters = targets.map(clusterNode)
  const bindingNodes: TreeNode[] = binding
    ? [{ id: 'binding', kind: binding.kind, name: binding.name, health: targets.length === 0 ? 'bad' : worstHealth(clusters), note: `× ${binding.replicas}`, children: clusters }]
    : []
  return {
    id: 'template',
    kind: template.kind,
    name: template.name,
    health: worstHealth(clusters),
    children: policy ? [{ id: 'policy', kind: policy.kind, name: policy.name, health: worstHealth(bindingNodes), policy, children: bindingNodes }] : bindingNodes,
  }
}

/** Node of a target's Work, without child nodes. */
function workNode(work: ObjectReference, { cluster, applied, health }: Target, isSuspended: boolean): TreeNode {
  return {
    id: `work ${cluster}`,
    kind: work.kind,
    name: work.name,
    health: !applied || health === 'Unhealthy' ? 'bad' : isSuspended || health !== 'Healthy' ? 'unknown' : 'good',
    work: { ...work, sync: isSuspended ? 'Suspended' : applied ? 'Applied' : 'NotApplied' },
    children: [],
  }
}

/** Causes of blockers that suspend propagation to a cluster. */
const SUSPENDED_CAUSE = /Suspended$/
/** Causes of blockers that make propagation to a cluster fail. */
const FAILING_CAUSES = new Set(['ApplyFailed', 'OverrideFailed', 'KindNotServed', 'ClusterNotReady', 'ClusterLeaving', 'ClusterMissing'])

/** Ready and assigned replicas: `2/4`. */
function formatReplicas(ready: string | undefined, replicas: number | undefined): string {
  if (replicas === undefined) return ''
  const readyCount = ready?.split('/')[0]
  return readyCount === undefined ? `× ${replicas}` : `${readyCount}/${replicas}`
}

function worstHealth(nodes: TreeNode[]): Health {
  if (nodes.some(({ health }) => health === 'bad')) return 'bad'
  return nodes.length > 0 && nodes.every(({ health }) => health === 'good') ? 'good' : 'unknown'
}

export interface PlacedNode {
  node: TreeNode
  level: number
  /** Vertical position in rows; parents are centered on their children. */
  row: number
  parent: number | undefined
  siblingCount: number
  position: number
}

/** Each node with its column and row, in reading order; trees are below each other. */
export function layoutTrees(...roots: readonly TreeNode[]): { placed: PlacedNode[]; rows: number; levels: number } {
  const placed: PlacedNode[] = []
  let rows = 0
  let levels = 0
  const placeNode = (node: TreeNode, level: number, parent: number | undefined, position: number, siblingCount: number): number => {
    const at = placed.length
    const placedNode: PlacedNode = { node, level, row: 0, parent, position, siblingCount }
    placed.push(placedNode)
    levels = Math.max(levels, level + 1)
    const childRows = node.children.map((child, index) => placeNode(child, level + 1, at, index + 1, node.children.length))
    placedNode.row = childRows.length === 0 ? rows++ : (childRows[0]! + childRows.at(-1)!) / 2
    return placedNode.row
  }
  roots.forEach((root, nth) => placeNode(root, 0, undefined, nth + 1, roots.length))
  return { placed, rows, levels }
}

/** Index of the node that a navigation key selects; undefined or -1 if there is none. */
export function nodeIndexAfterKey(key: string, at: number, placed: PlacedNode[]): number | undefined {
  const current = placed[at]
  if (!current) return undefined
  if (key === 'ArrowLeft') return current.parent
  if (key === 'ArrowRight') return placed.findIndex(({ parent }) => parent === at)
  if (key === 'Home') return 0
  if (key === 'End') return placed.length - 1
  if (key !== 'ArrowDown' && key !== 'ArrowUp') return undefined
  const column = placed.map((node, nth) => ({ ...node, index: nth })).filter(({ level }) => level === current.level)
  const order = column.sort((a, b) => a.row - b.row)
  const next = order[order.findIndex(({ index }) => index === at) + (key === 'ArrowDown' ? 1 : -1)]
  return next?.index
}
