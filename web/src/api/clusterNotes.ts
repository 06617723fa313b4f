// Notes on a Cluster for users of the UI: a warning, and whether the UI offers no changes there. Permissions are those of RBAC.
import { useQuery } from '@tanstack/react-query'
import { CONTROL_PLANE, getJson } from './client'
import { CLUSTER_QUERY } from './clusters'
import type { Hit } from './types'
import { API } from './searchApi'

const WARNING = 'ui.crowsnest.io/warning'
const READ_ONLY = 'ui.crowsnest.io/read-only'
const columnOf = (annotation: string) => `.metadata.annotations["${annotation}"]`
const QUERY = `${CLUSTER_QUERY} (ann:${WARNING} OR ann:${READ_ONLY})`
/** The server's maximum page size. */
const MAX_CLUSTERS = 500
const STALE_MS = 60_000

export interface ClusterNotes {
  warning?: string
  isReadOnly: boolean
}

export function notesOf({ columns = {} }: Pick<Hit, 'columns'>): ClusterNotes {
  const warning = columns[columnOf(WARNING)]
  return { ...(warning && { warning }), isReadOnly: columns[columnOf(READ_ONLY)] === 'true' }
}

/** Notes of all Clusters that have any and that the user may read, by name. */
export async function readClusterNotes(signal?: AbortSignal): Promise<ReadonlyMap<string, ClusterNotes>> {
  const parameters = new URLSearchParams({ q: QUERY, columns: [WARNING, READ_ONLY].map(columnOf).join(), facets: '', limit: String(MAX_CLUSTERS) })
  const { hits } = await getJson<{ hits: Hit[] }>(`${API}/query?${parameters}`, signal)
  return new Map(hits.map((hit) => [hit.name, notesOf(hit)]))
}

/** Notes of a cluster; undefined if there are none, and until they are known. */
export function useClusterNotes(cluster: string): ClusterNotes | undefined {
  const notes = useQuery({ queryKey: ['cluster notes'], queryFn: ({ signal }) => readClusterNotes(signal), staleTime: STALE_MS, retry: false, enabled: cluster !== CONTROL_PLANE })
  return notes.data?.get(cluster)
}
