// Usage of quotas, and usage that members report but the total of the FederatedResourceQuota does not contain. Has no side effects.
import type { Quantities, Quota } from '../../api/karmada'
import { parseQuantity } from '../../api/quantity'

/**
 * Used amount of a resource in base units. A status lists only resources that are in use, so the amount is 0 if the status has the limit of the resource;
 * without it, the resource has not been counted yet, and the amount is undefined.
 */
export function usedAmount(resource: string, status: { hard?: Quantities | undefined; used?: Quantities | undefined }): number | undefined {
  const used = status.used?.[resource]
  if (used !== undefined) return parseQuantity(used)
  return status.hard?.[resource] === undefined ? undefined : 0
}

export interface UncountedUsage {
  resource: string
  /** Sum of the members' usage minus the total, in base units. */
  excess: number
}

/**
 * Resources whose usage, as the members report it, is above the quota's total. The total counts the bindings of the namespace, members count pods:
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
