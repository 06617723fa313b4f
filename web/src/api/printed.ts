// kubectl's printed columns of the kind of all hits, as names of columns.
import { getJson } from './client'
import { objectsOf } from './kube'
import type { Hit, KubeObject } from './types'
import { API } from './useSearch'

/** Columns that every hit has already. */
const ALREADY = new Set(['print:Name', 'print:Age', '.metadata.name', '.metadata.creationTimestamp'])

interface Definition extends KubeObject {
  spec: { versions: { name: string; additionalPrinterColumns?: { jsonPath: string }[] }[] }
}

export async function printedOf(q: string, signal: AbortSignal): Promise<string[]> {
  const { hits } = await getJson<{ hits: Hit[] }>(`${API}/query?limit=1&facets=&columns=print:*&q=${encodeURIComponent(q)}`, signal)
  const [hit] = hits
  if (!hit) return []
  const names = namesOf(hit)
  const [group, version] = hit.apiVersion.split('/')
  if (names.length > 0 || version === undefined) return names
  // A custom resource: its definition has the printed columns, as JSONPaths.
  const [definition] = await objectsOf<Definition>(`kind:customresourcedefinition name:="${hit.resource}.${group}" cluster:"${hit.cluster}"`, 1, signal)
  return pathsOf(definition?.spec.versions.find(({ name }) => name === version)?.additionalPrinterColumns)
}

/** Names of a hit's printed columns, without those that duplicate other columns. */
export function namesOf({ columns = {}, node, ready, status }: Hit): string[] {
  const said: Record<string, string | undefined> = { 'print:Node': node, 'print:Ready': ready, 'print:Status': status }
  return Object.keys(columns).filter((name) => !ALREADY.has(name) && columns[name] !== said[name])
}

/** Plain paths only: the query language has no filters for list items. */
export function pathsOf(columns: { jsonPath: string }[] = []): string[] {
  return columns.map(({ jsonPath }) => jsonPath).filter((path) => /^(\.[\w-]+(\[\d+\])?)+$/.test(path) && !ALREADY.has(path))
}
