// Pods of nodes relative to their capacity. Pure.
import type { Node } from '../../api/karmada'
import { quantity, share } from '../../api/quantity'
import type { FacetValue } from '../../api/types'
import { usageOf, type Usage } from '../../parts/usage'

export interface NodeUsage {
  node: string
  pods: number
  /** Allocatable pods of the node. */
  capacity: number
  percent: number
  usage: Usage | undefined
}

/** Nodes with an allocatable number of pods, sorted by usage, highest first. */
export function nodeUsages(nodes: readonly Node[], pods: readonly FacetValue[]): NodeUsage[] {
  const counts = new Map(pods.map(({ value, count }) => [value, count]))
  const all = nodes.flatMap(({ metadata: { name }, status }): NodeUsage[] => {
    const capacity = quantity(status?.allocatable?.pods)
    if (capacity <= 0) return []
    const count = counts.get(name) ?? 0
    const part = share(count, capacity)
    return [{ node: name, pods: count, capacity, percent: Math.round(part * 100), usage: usageOf(part) }]
  })
  return all.sort((one, other) => other.pods / other.capacity - one.pods / one.capacity || one.node.localeCompare(other.node))
}
