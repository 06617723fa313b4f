// Tree of the objects that depend on an object, or that it depends on, and its visible items. Has no side effects.
import { keyOf } from '../../api/pages'
import type { BlastRadius } from './blastRadius'
import type { Node } from './layout'

export interface DependencyNode {
  /** Unique in the tree. It has the cluster, since clusters that were restored from the same backup have objects with the same UIDs. */
  id: string
  node: Node
  /** The edge from the parent: `USES →` in its direction, `← USES` against it. Empty for the root. */
  relation: string
  /** Fields that state the edge. */
  via: string
  children: DependencyNode[]
}

/** Objects of this level and above are expanded by default. The root has level 1. */
const EXPANDED_LEVELS = 2
/** Maximum number of children that are shown at first, and that each request of the user adds. */
const MAX_CHILDREN = 20
const MORE_CHILDREN = 100

/** The reached objects as a tree, in which the parent of an object is the one from which it was reached; undefined without objects. */
export function toTree({ nodes, edges, reached }: BlastRadius): DependencyNode | undefined {
  const entries = nodes.map((node): DependencyNode => ({ id: node.uid ? `${node.cluster} ${node.uid}` : keyOf(node), node, relation: '', via: '', children: [] }))
  for (const { node: nth, edge } of reached) {
    const entry = entries[nth]
    const pathEdge = edges[edge]
    if (!entry || !pathEdge || nth === 0) continue
    const parent = entries[pathEdge.from === nth ? pathEdge.to : pathEdge.from]
    if (!parent) continue
    entry.relation = pathEdge.to === nth ? `${pathEdge.type} →` : `← ${pathEdge.type}`
    entry.via = pathEdge.via.join(', ')
    parent.children.push(entry)
  }
  return entries[0]
}

/** A visible item of the tree: an object, or the children of an object that are not shown. */
export interface TreeItem {
  id: string
  /** The object, or the parent of the children that are not shown. */
  entry: DependencyNode
  /** Number of children that are not shown; 0 for an object. */
  hiddenCount: number
  level: number
  /** Position among its siblings, from 1. */
  position: number
  siblingCount: number
  /** Index of the parent in the list; undefined for the root. */
  parent: number | undefined
  /** Undefined for an item without children. */
  isExpanded: boolean | undefined
}

/** The visible items in the order of their lines. `toggled` has the ids of items whose state is not the default. */
export function visibleItems(root: DependencyNode, toggled: ReadonlySet<string>): TreeItem[] {
  const items: TreeItem[] = []
  const add = (entry: DependencyNode, place: Pick<TreeItem, 'level' | 'position' | 'siblingCount' | 'parent'>) => {
    const isExpanded = entry.children.length === 0 ? undefined : (place.level <= EXPANDED_LEVELS) !== toggled.has(entry.id)
    const parent = items.push({ ...place, id: entry.id, entry, hiddenCount: 0, isExpanded }) - 1
    if (!isExpanded) return
    const { shown, moreId } = shownChildren(entry, toggled)
    const hiddenCount = entry.children.length - shown.length
    const siblingCount = shown.length + (hiddenCount > 0 ? 1 : 0)
    const level = place.level + 1
    shown.forEach((child, nth) => add(child, { level, position: nth + 1, siblingCount, parent }))
    if (hiddenCount > 0) items.push({ id: moreId, entry, hiddenCount, level, position: siblingCount, siblingCount, parent, isExpanded: undefined })
  }
  add(root, { level: 1, position: 1, siblingCount: 1, parent: undefined })
  return items
}

/** The children that are shown, and the id of the item that adds others. */
function shownChildren({ id, children }: DependencyNode, toggled: ReadonlySet<string>): { shown: DependencyNode[]; moreId: string } {
  let additions = 0
  while (toggled.has(`${id} more ${additions}`)) additions += 1
  return { shown: children.slice(0, MAX_CHILDREN + additions * MORE_CHILDREN), moreId: `${id} more ${additions}` }
}

/** True if the item can be toggled: it has children, or it stands for some. */
export const isToggle = ({ isExpanded, hiddenCount }: TreeItem) => isExpanded !== undefined || hiddenCount > 0

/** Effect of a key: the index of the item to which it moves, or the id of the item that it toggles. */
export type KeyEffect = { moveTo: number } | { toggle: string }

/** Effect of a key on the item at an index, by the tree pattern of the ARIA Authoring Practices Guide; undefined if it has none. */
export function effectOfKey(key: string, at: number, items: readonly TreeItem[]): KeyEffect | undefined {
  const item = items[at]
  if (!item) return undefined
  switch (key) {
    case 'ArrowDown':
      return { moveTo: Math.min(at + 1, items.length - 1) }
    case 'ArrowUp':
      return { moveTo: Math.max(at - 1, 0) }
    case 'Home':
      return { moveTo: 0 }
    case 'End':
      return { moveTo: items.length - 1 }
    case 'ArrowRight':
      if (item.isExpanded) return { moveTo: at + 1 }
      return isToggle(item) ? { toggle: item.id } : undefined
    case 'ArrowLeft':
      if (item.isExpanded) return { toggle: item.id }
      return item.parent === undefined ? undefined : { moveTo: item.parent }
    case ' ':
      return isToggle(item) ? { toggle: item.id } : undefined
    default:
      return undefined
  }
}
