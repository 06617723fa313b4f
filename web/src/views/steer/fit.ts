// The outcome of the filters for a cluster in a scheduling result. Pure.
import type { ClusterReport } from '../../api/propagation'

export interface Fit {
  /** The filter that rejects it. */
  state?: string
  why?: string
  tone: 'good' | 'warn' | 'bad'
}

/** Filters keep a current target; an untolerated NoExecute taint evicts it all the same. */
export function fitOf({ rejected, evictedBy }: Pick<ClusterReport, 'rejected' | 'evictedBy'>): Fit {
  if (rejected) return { state: rejected.filter, why: rejected.reason, tone: 'bad' }
  return evictedBy === undefined ? { tone: 'good' } : { why: evictedBy, tone: 'warn' }
}
