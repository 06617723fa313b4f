// What the index knows of the fleet's clusters. Their objects are large and there may be hundreds: a page that shows all of them asks for
// the few fields that it shows, and reads whole objects where something is to be told of them.
import { quantity } from './quantity'
import type { Taint } from './karmada'
import { getJson } from './client'
import type { Hit } from './types'
import { API } from './useSearch'

/** Finds the objects of all clusters. */
export const CLUSTERS = 'kind:cluster group:cluster.karmada.io cluster:"@control-plane"'
/** The server's own bound on a page. */
const PAGE = 500
/** Taints that are shown of a cluster. */
const TAINTS = 5

const SUMMARY = '.status.resourceSummary'
export const RESOURCES = ['cpu', 'memory', 'pods'] as const
export type Resource = (typeof RESOURCES)[number]
const NAMES = [
  '.metadata.deletionTimestamp',
  ...RESOURCES.flatMap((resource) => ['allocatable', 'allocated', 'allocating'].map((of) => `${SUMMARY}.${of}.${resource}`)),
  ...Array.from({ length: TAINTS }, (_, nth) => ['key', 'value', 'effect'].map((of) => `.spec.taints[${nth}].${of}`)).flat(),
]

/** What a cluster has of a resource, and what is asked for. */
export interface Room {
  used: number
  whole: number
}

export interface ClusterFacts {
  /** Absent where the cluster does not say. */
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

/** Of all clusters that the reader may list, by their names. */
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
