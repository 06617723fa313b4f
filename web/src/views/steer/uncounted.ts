// Usage that members report and a quota's total does not contain. Pure.
import type { Quota } from '../../api/karmada'
import { quantity } from '../../api/quantity'

export interface Uncounted {
  resource: string
  /** By how much the members report more. */
  more: number
}

/**
 * The total counts the bindings of the namespace, members count pods: those of another writer, or of a rolling update, are in the members'
 * usage only. Members without an assignment report nothing, so less than the total is normal.
 */
export function uncounted({ spec, status }: Pick<Quota, 'spec' | 'status'>): Uncounted[] {
  return Object.keys(spec.overall ?? {}).flatMap((resource): Uncounted[] => {
    const total = status?.overallUsed?.[resource]
    if (total === undefined) return []
    const members = (status?.aggregatedStatus ?? []).reduce((sum, { used }) => sum + quantity(used?.[resource]), 0)
    const more = members - quantity(total)
    // Sums of decimal fractions are not exact.
    return more > 1e-6 * Math.max(1, members) ? [{ resource, more }] : []
  })
}
