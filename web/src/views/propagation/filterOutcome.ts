// Outcome of the scheduler's filters for a cluster. Has no side effects.
import type { ClusterReport } from '../../api/propagation'

export interface FilterOutcome {
  /** Name of the filter that rejected the cluster. */
  filter?: string
  reason?: string
  tone: 'good' | 'warn' | 'bad'
}

/** Outcome for a cluster. A current target that passes the filters but will be evicted by an untolerated NoExecute taint is a warning. */
export function filterOutcomeOf({ rejected, evictedBy }: Pick<ClusterReport, 'rejected' | 'evictedBy'>): FilterOutcome {
  if (rejected) return { filter: rejected.filter, reason: rejected.reason, tone: 'bad' }
  return evictedBy === undefined ? { tone: 'good' } : { reason: evictedBy, tone: 'warn' }
}
