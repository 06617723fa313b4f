// The topology of a template as a positioned tree: template, binding, clusters, objects, pods. Pure.
import { isKind, qualified } from '../../api/client'
import type { Explanation, PolicyName, Target } from '../../api/propagation'
import type { Hit } from '../../api/types'

export type Health = 'good' | 'bad' | 'unknown'

export interface TreeNode {
  id: string
  kind: string
  name: string
  cluster?: string | undefined
  note?: string | undefined
  /** Shown on hovering, and read out after the name. */
  title?: string | undefined
  health: Health
  /** The edge to it: what is sent along it does not arrive. */
  edge?: 'suspended' | 'failing' | undefined
  policy?: PolicyName | undefined
  /** Its link. */
  object?: Hit | undefined
  query?: string | undefined
  children: TreeNode[]
}

/** Number of pods of one state that are shown individually; more are one node with a count. */
const SINGLE = 4

const BAD = /^(?!(Running|Completed|Succeeded|Ready|Active|Bound|Available|Healthy|Complete)\b)./

export function healthOf(status: string | undefined): Health {
  if (status === undefined || status === '' || status === 'Unknown') return 'unknown'
  return BAD.test(status) ? 'bad' : 'good'
}

export interface MemberGraph {
  nodes: Hit[]
  edges: { from: number; to: number; relation: string }[]
}

/** Known dependents of an object as child nodes. Many of one state are one node. */
export function owned(graph: MemberGraph, isRoot: (hit: Hit) => boolean): TreeNode | undefined {
  const root = graph.nodes.findIndex(isRoot)
  if (root < 0) return undefined
  const children = new Map<number, number[]>()
  for (const { from, to, relation } of graph.edges) {
    if (relation === 'owner') children.set(to, [...(children.get(to) ?? []), from])
  }
  const grow = (nth: number, seen: ReadonlySet<number>): TreeNode => {
    const hit = graph.nodes[nth]!
    const below = (children.get(nth) ?? []).filter((child) => !seen.has(child)).map((child) => grow(child, new Set([...seen, nth])))
    return { ...nodeOf(hit), children: rolled(below, hit) }
  }
  return grow(root, new Set())
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

function rolled(nodes: TreeNode[], parent: Hit): TreeNode[] {
  const leaves = nodes.filter(({ children, object }) => children.length === 0 && object !== undefined && isKind(object, '', 'Pod'))
  const groups = new Map<string, TreeNode[]>()
  for (const leaf of leaves) {
    const status = leaf.object?.status ?? ''
    groups.set(status, [...(groups.get(status) ?? []), leaf])
  }
  const many = [...groups].filter(([, members]) => members.length > SINGLE)
  const gone = new Set(many.flatMap(([, members]) => members))
  const where = parent.namespace ? ` ns:${parent.namespace}` : ''
  return [
    ...nodes.filter((node) => !gone.has(node) && !emptyReplicaSet(node)),
    ...many.map(([status, members]): TreeNode => ({
      id: `${members[0]!.id} and others`,
      kind: 'Pod',
      name: `${members.length} × ${status || 'Pod'}`,
      cluster: parent.cluster,
      health: healthOf(status),
      query: `kind:pod cluster:${parent.cluster}${where} status:"${status}" owner:${qualified(parent.kind.toLowerCase(), parent.apiVersion)}/${parent.name} depth:2`,
      children: [],
    })),
  ]
}

/** An old ReplicaSet of a rollout. */
const emptyReplicaSet = ({ object, children }: TreeNode) => object !== undefined && isKind(object, 'apps', 'ReplicaSet') && children.length === 0 && /^0\/0$|^$/.test(object.ready ?? '')

/** A copy that the member reports as healthy may still have fewer replicas than are wanted, and a suspended one may be outdated. */
function healthOfTarget({ applied, health, replicas }: Target, member: TreeNode | undefined, suspended: boolean): Health {
  const live = member?.object?.ready?.split('/')[0]
  if (!applied || health === 'Unhealthy' || (replicas !== undefined && live !== undefined && Number(live) < replicas)) return 'bad'
  return suspended || health !== 'Healthy' ? 'unknown' : 'good'
}

/** The whole tree; member objects are given by cluster name. */
export function treeOf(explanation: Explanation, members: ReadonlyMap<string, TreeNode | undefined>): TreeNode {
  const { template, policy, binding, targets, waiting } = explanation
  const suspendedEverywhere = waiting.some(({ cause, cluster }) => SUSPENDED.test(cause) && cluster === undefined)
  const target = (one: Target): TreeNode => {
    const member = members.get(one.cluster)
    const suspended = suspendedEverywhere || waiting.some(({ cause, cluster }) => SUSPENDED.test(cause) && cluster === one.cluster)
    const failing = !one.applied || waiting.some(({ cause, cluster }) => FAILING.has(cause) && cluster === one.cluster)
    return {
      id: `cluster ${one.cluster}`,
      kind: 'Cluster',
      name: one.cluster,
      cluster: one.cluster,
      note: one.placed === 'Scheduled' ? counts(member?.object?.ready, one.replicas) : one.placed,
      edge: suspended ? 'suspended' : failing ? 'failing' : undefined,
      health: healthOfTarget(one, member, suspended),
      children: member ? [member] : [],
    }
  }
  const clusters = targets.map(target)
  const bound: TreeNode[] = binding
    ? [{ id: 'binding', kind: binding.kind, name: binding.name, health: targets.length === 0 ? 'bad' : worst(clusters), note: `× ${binding.replicas}`, children: clusters }]
    : []
  return {
    id: 'template',
    kind: template.kind,
    name: template.name,
    health: worst(clusters),
    children: policy ? [{ id: 'policy', kind: policy.kind, name: policy.name, health: worst(bound), policy, children: bound }] : bound,
  }
}

/** Causes of blockers that stop the way to a cluster, or show that it fails. */
const SUSPENDED = /Suspended$/
const FAILING = new Set(['ApplyFailed', 'OverrideFailed', 'KindNotServed', 'ClusterNotReady', 'ClusterLeaving', 'ClusterMissing'])

/** Live and wanted replicas: `2/4`. */
function counts(ready: string | undefined, replicas: number | undefined): string {
  if (replicas === undefined) return ''
  const live = ready?.split('/')[0]
  return live === undefined ? `× ${replicas}` : `${live}/${replicas}`
}

function worst(nodes: TreeNode[]): Health {
  if (nodes.some(({ health }) => health === 'bad')) return 'bad'
  return nodes.length > 0 && nodes.every(({ health }) => health === 'good') ? 'good' : 'unknown'
}

export interface Placed {
  node: TreeNode
  level: number
  /** Row; parents are centered on their children. */
  row: number
  parent: number | undefined
  set: number
  nth: number
}

/** Each node with its column and row, in reading order; trees are below each other. */
export function layout(...roots: readonly TreeNode[]): { placed: Placed[]; rows: number; levels: number } {
  const placed: Placed[] = []
  let rows = 0
  let levels = 0
  const place = (node: TreeNode, level: number, parent: number | undefined, nth: number, set: number): number => {
    const at = placed.length
    const own: Placed = { node, level, row: 0, parent, nth, set }
    placed.push(own)
    levels = Math.max(levels, level + 1)
    const below = node.children.map((child, index) => place(child, level + 1, at, index + 1, node.children.length))
    own.row = below.length === 0 ? rows++ : (below[0]! + below.at(-1)!) / 2
    return own.row
  }
  roots.forEach((root, nth) => place(root, 0, undefined, nth + 1, roots.length))
  return { placed, rows, levels }
}

/** The node that an arrow key selects. */
export function stepTo(key: string, at: number, placed: Placed[]): number | undefined {
  const here = placed[at]
  if (!here) return undefined
  if (key === 'ArrowLeft') return here.parent
  if (key === 'ArrowRight') return placed.findIndex(({ parent }) => parent === at)
  if (key === 'Home') return 0
  if (key === 'End') return placed.length - 1
  if (key !== 'ArrowDown' && key !== 'ArrowUp') return undefined
  const column = placed.map((one, nth) => ({ ...one, index: nth })).filter(({ level }) => level === here.level)
  const order = column.sort((a, b) => a.row - b.row)
  const next = order[order.findIndex(({ index }) => index === at) + (key === 'ArrowDown' ? 1 : -1)]
  return next?.index
}
