// Usage of quotas that members report but the total of the FederatedResourceQuota does not contain. Has no side effects.
import type { Quota } from '../../api/karmada'
import { parseQuantity } from '../../api/quantity'

export interface UncountedUsage {
  resource: string
  /** Sum of the members' usage minus the total, in base units. */
  excess: number
}

/**
 * Resources of which the members report more than the quota's total. The total counts the bindings of the namespace, members count pods:
 * pods that Karmada did not create, and additional pods of a rolling update, are in the members' usage only. Members without an assignment report no
 * usage, so a sum below the total is normal.
 */
export function uncountedUsage({ spec, status }: Pick<Quota, 'spec' | 'status'>): UncountedUsage[] {
  return Object.keys(spec.overall ?? {}).flatMap((resource): UncountedUsage[] => {
    const total = status?.overallUsed?.[resource]
    if (total === undefined) return []
    const members = (status?.aggregatedStatus ?? []).reduce((sum, { used }) => sum + parseQuantity(used?.[resource]), 0)
    const excess = members - parseQuantity(total)
    // Sums of decimal fractions are not exact.
    return excess > 1e-6 * Math.max(1, members) ? [{ resource, excess }] : []
  })
}
