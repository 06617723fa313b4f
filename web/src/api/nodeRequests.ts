// Pods of a cluster's nodes and the resources that they request, counted and summed by the search API with the user's own permissions.
import { getJson } from './client'
import type { Groups, SkippedCluster } from './types'
import { API } from './searchApi'

/** Resources whose requests are summed. */
export const REQUESTED_RESOURCES = ['cpu', 'memory'] as const
export type RequestedResource = (typeof REQUESTED_RESOURCES)[number]

/** Fields of the query language with these requests, and the factors that convert their values to base units. */
const FIELDS: Record<RequestedResource, { name: string; unit: number }> = { cpu: { name: 'cpu.req', unit: 1e-3 }, memory: { name: 'mem.req', unit: 1 } }

export interface NodeRequestsResponse {
  totalRelation: 'eq' | 'gte'
  groups?: Groups
  skipped: SkippedCluster[]
}

export interface NodeRequests {
  /** Amounts by node, in base units; undefined if the response lacks the amount. Nodes without pods are absent. */
  pods: ReadonlyMap<string, number>
  cpu: ReadonlyMap<string, number | undefined>
  memory: ReadonlyMap<string, number | undefined>
  /** True if the response has the groups of all nodes with pods; otherwise, the amounts of an absent node are unknown. */
  hasAllNodes: boolean
  /** True if a limit of the search was reached: the amounts may be too low. */
  isLowerBound: boolean
  /** The cluster, if its data is missing or outdated. */
  skipped: SkippedCluster[]
}

/** Query for the pods that occupy resources of nodes, as `kubectl describe node` counts them. */
export const podsOfNodesQuery = (cluster: string) => `kind:pod cluster:${cluster} -phase:Succeeded,Failed group:node`

export async function readNodeRequests(cluster: string, signal: AbortSignal): Promise<NodeRequests> {
  const fields = REQUESTED_RESOURCES.map((resource) => FIELDS[resource].name).join()
  const path = `${API}/query?limit=0&facets=&sums=${fields}&q=${encodeURIComponent(podsOfNodesQuery(cluster))}`
  return parseNodeRequests(cluster, await getJson<NodeRequestsResponse>(path, signal))
}

export function parseNodeRequests(cluster: string, { totalRelation, groups, skipped }: NodeRequestsResponse): NodeRequests {
  const nodes = groups?.values ?? []
  const skippedHere = skipped.filter((entry) => entry.cluster === cluster)
  const isLowerBound = totalRelation !== 'eq'
  const sums = (resource: RequestedResource) => {
    const { name, unit } = FIELDS[resource]
    return new Map(
      nodes.map(({ value, sums }) => {
        const sum = sums?.[name] ?? undefined
        return [value, sum === undefined ? undefined : sum * unit]
      }),
    )
  }
  return {
    pods: new Map(nodes.map(({ value, count }) => [value, count])),
    cpu: sums('cpu'),
    memory: sums('memory'),
    hasAllNodes: groups?.more === 0 && !isLowerBound && !skippedHere.some(({ missing }) => missing),
    isLowerBound,
    skipped: skippedHere,
  }
}

/** The amount of a node, 0 if it has no pods; undefined if it is unknown. */
export function amountOfNode(requests: NodeRequests, resource: RequestedResource | 'pods', node: string): number | undefined {
  if (requests.pods.has(node)) return requests[resource].get(node)
  return requests.hasAllNodes ? 0 : undefined
}
