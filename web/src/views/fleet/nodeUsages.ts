// Used amounts of nodes relative to their allocatable amounts. Has no side effects.
import type { Node } from '../../api/karmada'
import { parseQuantity, usedFraction } from '../../api/quantity'
import { usageLevelOf, type UsageLevel } from '../../parts/usage'

export interface NodeUsage {
  node: string
  /** Absent if the used or the allocatable amount is unknown. */
  usage?: { used: number; allocatable: number; percent: number; level: UsageLevel | undefined }
}

/** Usage of nodes, highest first, and after them the nodes whose usage is unknown. `used` has the known amounts by node. */
export function nodeUsages(nodes: readonly Node[], resource: string, used: ReadonlyMap<string, number>): NodeUsage[] {
  const all = nodes.map(({ metadata: { name }, status }): NodeUsage => {
    const allocatable = parseQuantity(status?.allocatable?.[resource])
    const amount = used.get(name)
    if (amount === undefined || allocatable <= 0) return { node: name }
    const fraction = usedFraction(amount, allocatable)
    return { node: name, usage: { used: amount, allocatable, percent: Math.round(fraction * 100), level: usageLevelOf(fraction) } }
  })
  // Any known usage is higher than an unknown one.
  const rank = ({ usage }: NodeUsage) => (usage ? usage.used / usage.allocatable : -1)
  return all.sort((left, right) => rank(right) - rank(left) || left.node.localeCompare(right.node))
}
