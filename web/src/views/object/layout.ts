// Layout of related objects: referenced objects (owners, used objects, subjects of events) are to the left of an object, referring objects
// to its right. Has no side effects.
import type { Hit } from '../../api/types'

export type Node = Omit<Hit, 'matched'>

export interface Edge {
  from: number
  to: number
  relation: 'owner' | 'uses' | 'about'
}

export interface Graph {
  nodes: Node[]
  edges: Edge[]
  more: boolean
}

/** Size of a box, and distances between boxes, in pixels. */
export const BOX = { width: 230, height: 46, across: 100, down: 12 }
/** Maximum number of objects of one kind and level that are shown individually; more are folded into a box. */
const MAX_UNFOLDED = 6

export interface Box {
  key: string
  x: number
  y: number
  /** Indices in the graph; several: a folded box of one kind. */
  members: number[]
}

export interface Line {
  from: Box
  to: Box
  relation: Edge['relation']
}

export interface Layout {
  boxes: Box[]
  lines: Line[]
  width: number
  height: number
}

/** True for Events, which are shown apart from other objects: there may be many, and they are not part of the structure. */
export const isEvent = ({ apiVersion, kind }: Pick<Node, 'apiVersion' | 'kind'>) => kind === 'Event' && (apiVersion === 'v1' || apiVersion.startsWith('events.k8s.io/'))

/** Column of each node relative to the first node: references lead to the left. */
export function computeLevels(count: number, edges: Edge[]): number[] {
  const levels: (number | undefined)[] = Array.from({ length: count })
  levels[0] = 0
  const queue = [0]
  for (let at = queue.shift(); at !== undefined; at = queue.shift()) {
    const currentLevel = levels[at] ?? 0
    for (const { from, to } of edges) {
      const [next, level] = from === at ? [to, currentLevel - 1] : to === at ? [from, currentLevel + 1] : [undefined, 0]
      if (next === undefined || levels[next] !== undefined) continue
      levels[next] = level
      queue.push(next)
    }
  }
  return levels.map((level) => level ?? 0)
}

/** Computes the layout of a graph. `open` contains the keys of expanded boxes. */
export function layoutGraph({ nodes, edges }: Graph, open: ReadonlySet<string>): Layout {
  const level = computeLevels(nodes.length, edges)
  const groups = new Map<string, number[]>()
  nodes.forEach((node, nth) => {
    const key = nth === 0 ? '' : `${node.kind}@${level[nth]}@${node.cluster}`
    groups.set(key, [...(groups.get(key) ?? []), nth])
  })
  const columns = new Map<number, { key: string; members: number[] }[]>()
  const isOfEvents = (members: number[]) => members.some((nth) => nth > 0 && nodes[nth] !== undefined && isEvent(nodes[nth]))
  // Events are the last boxes of a column.
  const ordered = [...groups].sort(([, one], [, other]) => Number(isOfEvents(one)) - Number(isOfEvents(other)))
  for (const [key, members] of ordered) {
    const isFolded = members.length > (isOfEvents(members) ? 1 : MAX_UNFOLDED) && !open.has(key)
    const boxes = isFolded ? [{ key, members }] : members.map((nth) => ({ key: `${key}#${nth}`, members: [nth] }))
    const column = level[members[0] ?? 0] ?? 0
    columns.set(column, [...(columns.get(column) ?? []), ...boxes])
  }
  const order = [...columns.keys()].sort((a, b) => a - b)
  const tallest = Math.max(1, ...[...columns.values()].map((column) => column.length))
  const step = BOX.height + BOX.down
  const boxes = order.flatMap((column, nth) => {
    const columnBoxes = columns.get(column) ?? []
    const top = ((tallest - columnBoxes.length) * step) / 2
    return columnBoxes.map(({ key, members }, row) => ({ key, members, x: nth * (BOX.width + BOX.across), y: top + row * step }))
  })
  const boxOf = new Map(boxes.flatMap((box) => box.members.map((member): [number, Box] => [member, box])))
  const lines = new Map<string, Line>()
  for (const { from, to, relation } of edges) {
    const [one, other] = [boxOf.get(from), boxOf.get(to)]
    if (one && other && one !== other) lines.set(`${one.key} ${other.key} ${relation}`, { from: one, to: other, relation })
  }
  return { boxes, lines: [...lines.values()], width: order.length * (BOX.width + BOX.across) - BOX.across, height: tallest * step - BOX.down }
}
