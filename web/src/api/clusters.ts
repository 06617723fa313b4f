// Clusters of the fleet, from the index. Cluster objects are large and there may be hundreds: pages that show all of them request
// only the fields they show, and read whole objects for details.
import { quantity } from './quantity'
import type { Taint } from './karmada'
import { getJson } from './client'
import type { Hit } from './types'
import { API } from './useSearch'

/** Query for the objects of all clusters. */
export const CLUSTERS = 'kind:cluster group:cluster.karmada.io cluster:"@control-plane"'
/** The server's limit for a page. */
const PAGE = 500
/** Number of taints that are shown per cluster. */
const TAINTS = 5

const SUMMARY = '.status.resourceSummary'
export const RESOURCES = ['cpu', 'memory', 'pods'] as const
export type Resource = (typeof RESOURCES)[number]
const NAMES = [
  '.metadata.deletionTimestamp',
  ...RESOURCES.flatMap((resource) => ['allocatable', 'allocated', 'allocating'].map((of) => `${SUMMARY}.${of}.${resource}`)),
  ...Array.from({ length: TAINTS }, (_, nth) => ['key', 'value', 'effect'].map((of) => `.spec.taints[${nth}].${of}`)).flat(),
]

/** Allocatable and requested amount of a resource. */
export interface Room {
  used: number
  whole: number
}

export interface ClusterFacts {
  /** Absent if the Cluster does not report it. */
  room: Partial<Record<Resource, Room>>
  taints: Taint[]
  leaving: boolean
}

export function factsOf({ columns = {} }: Pick<Hit, 'columns'>): ClusterFacts {
  const sum = (of: string, resource: Resource) => quantity(columns[`${SUMMARY}.${of}.${resource}`])
  const room = RESOURCES.filter((resource) => columns[`${SUMMARY}.allocatable.${resource}`] !== undefined).map((resource) => [
    resource,
    { used: sum('allocated', resource) + sum('allocating', resource), whole: sum('allocatable', resource) },
  ])
  const taints = Array.from({ length: TAINTS }, (_, nth) => `.spec.taints[${nth}]`).flatMap((at): Taint[] => {
    const [key, value, effect] = [columns[`${at}.key`], columns[`${at}.value`], columns[`${at}.effect`]]
    return key === undefined || effect === undefined ? [] : [{ key, effect, ...(value !== undefined && { value }) }]
  })
  return { room: Object.fromEntries(room) as ClusterFacts['room'], taints, leaving: columns['.metadata.deletionTimestamp'] !== undefined }
}

/** All clusters that the user may list, by name. */
export async function clusterFacts(signal: AbortSignal): Promise<Map<string, ClusterFacts>> {
  const facts = new Map<string, ClusterFacts>()
  let cursor: string | undefined
  do {
    const parameters = new URLSearchParams({ q: CLUSTERS, columns: NAMES.join(), facets: '', limit: String(PAGE), ...(cursor !== undefined && { cursor }) })
    const page = await getJson<{ hits: Hit[]; cursor?: string }>(`${API}/query?${parameters}`, signal)
    for (const hit of page.hits) facts.set(hit.name, factsOf(hit))
    cursor = page.hits.length < PAGE ? undefined : page.cursor
  } while (cursor !== undefined)
  return facts
}
