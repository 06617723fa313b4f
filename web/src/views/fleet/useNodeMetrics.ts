import type { Cluster } from '../../api/karmada'
import { readNodeMetrics, servesMetrics, type NodeMetrics } from '../../api/nodeMetrics'
import { usePolledQuery } from '../../parts/polledQuery'

/** Polling interval in milliseconds: metrics servers measure every 15 to 60 seconds. */
const REFRESH_INTERVAL_MS = 30_000

/** Usage of a cluster's nodes; undefined if the cluster does not serve it, or until it responds. */
export function useNodeMetrics(cluster: Cluster | undefined): NodeMetrics[] | undefined {
  const name = cluster?.metadata.name ?? ''
  const metrics = usePolledQuery(['node metrics', name], (signal) => readNodeMetrics(name, signal), REFRESH_INTERVAL_MS, cluster !== undefined && servesMetrics(cluster))
  return metrics.error ? undefined : metrics.data
}
