// Pods of nodes relative to their capacity. Pure.
import type { Node } from '../../api/karmada'
import { parseQuantity, usedFraction } from '../../api/quantity'
import type { FacetValue } from '../../api/types'
import { usageLevelOf, type UsageLevel } from '../../parts/usage'

export interface NodeUsage {
  node: string
  pods: number
  /** Allocatable pods of the node. */
  capacity: number
  percent: number
  level: UsageLevel | undefined
}

/** Nodes with an allocatable number of pods, sorted by usage, highest first. */
export function nodeUsages(nodes: readonly Node[], pods: readonly FacetValue[]): NodeUsage[] {
  const counts = new Map(pods.map(({ value, count }) => [value, count]))
  const all = nodes.flatMap(({ metadata: { name }, status }): NodeUsage[] => {
    const capacity = parseQuantity(status?.allocatable?.pods)
    if (capacity <= 0) return []
    const podCount = counts.get(name) ?? 0
    const fraction = usedFraction(podCount, capacity)
    return [{ node: name, pods: podCount, capacity, percent: Math.round(fraction * 100), level: usageLevelOf(fraction) }]
  })
  return all.sort((one, other) => other.pods / other.capacity - one.pods / one.capacity || one.node.localeCompare(other.node))
}
