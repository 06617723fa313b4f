// Summaries of the fleet's clusters, from the index. Cluster objects are large and there may be hundreds, so lists request only the fields
// that they show.
import { parseQuantity } from './quantity'
import type { Taint } from './karmada'
import { getJson } from './client'
import type { Hit } from './types'
import { API } from './searchApi'

/** Query for the objects of all clusters. */
export const CLUSTER_QUERY = 'kind:cluster group:cluster.karmada.io cluster:"@control-plane"'
/** The server's maximum page size. */
const PAGE_SIZE = 500
/** Maximum number of taints shown per cluster. */
const MAX_TAINTS = 5

const SUMMARY_PATH = '.status.resourceSummary'
export const RESOURCES = ['cpu', 'memory', 'pods'] as const
export type Resource = (typeof RESOURCES)[number]
const COLUMNS = [
  '.metadata.deletionTimestamp',
  ...RESOURCES.flatMap((resource) => ['allocatable', 'allocated', 'allocating'].map((amount) => `${SUMMARY_PATH}.${amount}.${resource}`)),
  ...Array.from({ length: MAX_TAINTS }, (_, nth) => ['key', 'value', 'effect'].map((field) => `.spec.taints[${nth}].${field}`)).flat(),
]

/** Requested (`used`) and allocatable (`total`) amount of a resource, in base units. */
export interface ResourceUsage {
  used: number
  total: number
}

export interface ClusterSummary {
  /** Absent if the Cluster does not report it. */
  usage: Partial<Record<Resource, ResourceUsage>>
  taints: Taint[]
  isBeingDeleted: boolean
}

export function summarizeCluster({ columns = {} }: Pick<Hit, 'columns'>): ClusterSummary {
  const sum = (amount: string, resource: Resource) => parseQuantity(columns[`${SUMMARY_PATH}.${amount}.${resource}`])
  const usage = RESOURCES.filter((resource) => columns[`${SUMMARY_PATH}.allocatable.${resource}`] !== undefined).map((resource) => [
    resource,
    { used: sum('allocated', resource) + sum('allocating', resource), total: sum('allocatable', resource) },
  ])
  const taints = Array.from({ length: MAX_TAINTS }, (_, nth) => `.spec.taints[${nth}]`).flatMap((path): Taint[] => {
    const [key, value, effect] = [columns[`${path}.key`], columns[`${path}.value`], columns[`${path}.effect`]]
    return key === undefined || effect === undefined ? [] : [{ key, effect, ...(value !== undefined && { value }) }]
  })
  return { usage: Object.fromEntries(usage) as ClusterSummary['usage'], taints, isBeingDeleted: columns['.metadata.deletionTimestamp'] !== undefined }
}

/** All clusters that the user may list, as hits with these columns. */
export async function readClusterHits(columns: readonly string[], signal: AbortSignal): Promise<Hit[]> {
  const hits: Hit[] = []
  let cursor: string | undefined
  do {
    const parameters = new URLSearchParams({ q: CLUSTER_QUERY, columns: columns.join(), facets: '', limit: String(PAGE_SIZE), ...(cursor !== undefined && { cursor }) })
    const page = await getJson<{ hits: Hit[]; cursor?: string }>(`${API}/query?${parameters}`, signal)
    hits.push(...page.hits)
    cursor = page.hits.length < PAGE_SIZE ? undefined : page.cursor
  } while (cursor !== undefined)
  return hits
}

/** Summaries of all clusters that the user may list, by name. */
export async function readClusterSummaries(signal: AbortSignal): Promise<Map<string, ClusterSummary>> {
  const hits = await readClusterHits(COLUMNS, signal)
  return new Map(hits.map((hit) => [hit.name, summarizeCluster(hit)]))
}
