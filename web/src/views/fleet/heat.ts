// Nodes by the share of their pods that is used. Pure.
import type { Node } from '../../api/karmada'
import { quantity, share } from '../../api/quantity'
import type { FacetValue } from '../../api/types'
import { usageOf, type Usage } from '../../parts/usage'

export interface Heat {
  node: string
  pods: number
  most: number
  percent: number
  usage: Usage | undefined
}

/** Each node that states how many pods it takes, the fullest first. */
export function heatOf(nodes: readonly Node[], pods: readonly FacetValue[]): Heat[] {
  const counts = new Map(pods.map(({ value, count }) => [value, count]))
  const all = nodes.flatMap(({ metadata: { name }, status }): Heat[] => {
    const most = quantity(status?.allocatable?.pods)
    if (most <= 0) return []
    const count = counts.get(name) ?? 0
    const part = share(count, most)
    return [{ node: name, pods: count, most, percent: Math.round(part * 100), usage: usageOf(part) }]
  })
  return all.sort((one, other) => other.pods / other.most - one.pods / one.most || one.node.localeCompare(other.node))
}
