// Used amounts of nodes relative to their allocatable amounts. Pure.
import type { Node } from '../../api/karmada'
import { parseQuantity, usedFraction } from '../../api/quantity'
import { usageLevelOf, type UsageLevel } from '../../parts/usage'

export interface NodeUsage {
  node: string
  used: number
  allocatable: number
  percent: number
  level: UsageLevel | undefined
}

/** Nodes that report an allocatable amount of a resource, sorted by usage, highest first. `used` has the amounts by node. */
export function nodeUsages(nodes: readonly Node[], resource: string, used: ReadonlyMap<string, number>): NodeUsage[] {
  const all = nodes.flatMap(({ metadata: { name }, status }): NodeUsage[] => {
    const allocatable = parseQuantity(status?.allocatable?.[resource])
    if (allocatable <= 0) return []
    const amount = used.get(name) ?? 0
    const fraction = usedFraction(amount, allocatable)
    return [{ node: name, used: amount, allocatable, percent: Math.round(fraction * 100), level: usageLevelOf(fraction) }]
  })
  return all.sort((left, right) => right.used / right.allocatable - left.used / left.allocatable || left.node.localeCompare(right.node))
}
