// Clusters that a template does not reach, with their reasons. Has no side effects.
import type { Explanation } from '../../api/propagation'
import { filterOutcomeOf } from './filterOutcome'

export interface AbsentCluster {
  cluster: string
  /** The filter that rejected the cluster; absent: the cluster fits, but was not selected. */
  filter?: string
  reason?: string
}

/** Filter that rejects clusters that the policy does not name. */
const AFFINITY_FILTER = 'ClusterAffinity'

/**
 * Clusters that are not targets. Of several affinity terms, the last one counts. Clusters that the policy does not name are last, because
 * others are more likely to be unexpected.
 */
export function absentClusters({ scheduling, targets }: Pick<Explanation, 'scheduling' | 'targets'>): AbsentCluster[] {
  const present = new Set(targets.map(({ cluster }) => cluster))
  const absent = new Map<string, AbsentCluster>()
  for (const report of scheduling?.terms.flatMap(({ clusters }) => clusters) ?? []) {
    if (present.has(report.name)) continue
    const { filter, reason } = filterOutcomeOf(report)
    absent.set(report.name, { cluster: report.name, ...(filter !== undefined && { filter }), ...(reason !== undefined && { reason }) })
  }
  const isUnnamed = ({ filter }: AbsentCluster) => Number(filter === AFFINITY_FILTER)
  return [...absent.values()].sort((a, b) => isUnnamed(a) - isUnnamed(b) || a.cluster.localeCompare(b.cluster))
}
