// Measures by which the heatmap shows a cluster's nodes. Has no side effects.
import { usageByNode, MEASURED_RESOURCES, type NodeMetrics } from '../../api/nodeMetrics'
import { amountOfNode, REQUESTED_RESOURCES, type NodeRequests } from '../../api/nodeRequests'

/** Values of the parameter `heat` of the address. `cpu` and `memory` are used amounts. */
export type MeasureName = 'cpu-requested' | 'memory-requested' | 'cpu' | 'memory' | 'pods'

export interface Measure {
  name: MeasureName
  resource: 'cpu' | 'memory' | 'pods'
  /** Amounts by node, in base units. A node whose amount is unknown is absent. */
  amounts: ReadonlyMap<string, number>
}

/** The available measures of these nodes, the default first. */
export function nodeMeasures(nodes: readonly string[], requests: NodeRequests | undefined, metrics: readonly NodeMetrics[] | undefined): Measure[] {
  const requestedAmounts = (resource: Measure['resource']) =>
    new Map(
      nodes.flatMap((node): [string, number][] => {
        const amount = requests && amountOfNode(requests, resource, node)
        return amount === undefined ? [] : [[node, amount]]
      }),
    )
  const requestMeasures: Measure[] = requests ? REQUESTED_RESOURCES.map((resource) => ({ name: `${resource}-requested`, resource, amounts: requestedAmounts(resource) })) : []
  const podMeasures: Measure[] = requests ? [{ name: 'pods', resource: 'pods', amounts: requestedAmounts('pods') }] : []
  const usageMeasures: Measure[] = metrics && metrics.length > 0 ? MEASURED_RESOURCES.map((resource) => ({ name: resource, resource, amounts: usageByNode(metrics, resource) })) : []
  return [...requestMeasures, ...usageMeasures, ...podMeasures]
}
