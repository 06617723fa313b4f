// Usage of a cluster's nodes from its metrics API, read through the cluster proxy with the user's own permissions.
import { clusterRoot, getJson } from './client'
import type { Cluster, Quantities } from './karmada'
import { withTimeout } from './kube'
import { parseQuantity } from './quantity'

const METRICS_API = 'metrics.k8s.io/v1beta1'

/** Resources whose usage the metrics API reports. */
export const MEASURED_RESOURCES = ['cpu', 'memory'] as const
export type MeasuredResource = (typeof MEASURED_RESOURCES)[number]

export interface NodeMetrics {
  metadata: { name: string }
  usage: Quantities
}

/** True if the cluster reports that it serves the metrics API. */
export function servesMetrics(cluster: Cluster): boolean {
  return (cluster.status?.apiEnablements ?? []).some(({ groupVersion }) => groupVersion === METRICS_API)
}

/** Usage of all nodes of a cluster. */
export async function readNodeMetrics(cluster: string, signal: AbortSignal): Promise<NodeMetrics[]> {
  const path = `${clusterRoot(cluster)}/apis/${METRICS_API}/nodes`
  const { items } = await withTimeout((timeoutSignal) => getJson<{ items?: NodeMetrics[] | null }>(path, timeoutSignal), signal)
  return items ?? []
}

/** Usage of a resource by node, in base units. Nodes whose usage is not reported are absent. */
export function usageByNode(metrics: readonly NodeMetrics[], resource: MeasuredResource): Map<string, number> {
  return new Map(metrics.flatMap(({ metadata, usage }): [string, number][] => (usage[resource] === undefined ? [] : [[metadata.name, parseQuantity(usage[resource])]])))
}

/** Usage of a resource in all nodes, in base units; undefined if it is not measured. */
export function totalUsage(metrics: readonly NodeMetrics[], resource: string): number | undefined {
  const measured = MEASURED_RESOURCES.find((name) => name === resource)
  const usages = measured === undefined ? [] : [...usageByNode(metrics, measured).values()]
  return usages.length === 0 ? undefined : usages.reduce((sum, usage) => sum + usage, 0)
}
