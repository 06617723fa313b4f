// Names of kubectl's printed columns for the kind of a query's hits.
import { getJson } from './client'
import { queryObjects } from './kube'
import type { Hit, KubeObject } from './types'
import { API } from './searchApi'

/** Printed columns that duplicate columns of every hit. */
const STANDARD_COLUMNS = new Set(['print:Name', 'print:Age', '.metadata.name', '.metadata.creationTimestamp'])

interface Definition extends KubeObject {
  spec: { versions: { name: string; additionalPrinterColumns?: { jsonPath: string }[] }[] }
}

/** Printed columns of the first hit's kind: `print:NAME`, or JSONPaths for a custom resource. */
export async function readPrintedColumns(q: string, signal?: AbortSignal): Promise<string[]> {
  const { hits } = await getJson<{ hits: Hit[] }>(`${API}/query?limit=1&facets=&columns=print:*&q=${encodeURIComponent(q)}`, signal)
  const [hit] = hits
  if (!hit) return []
  const names = printedColumnNames(hit)
  const [group, version] = hit.apiVersion.split('/')
  if (names.length > 0 || version === undefined) return names
  // A custom resource: its definition has the printed columns, as JSONPaths.
  const [definition] = await queryObjects<Definition>(`kind:customresourcedefinition name:="${hit.resource}.${group}" cluster:"${hit.cluster}"`, 1, signal)
  return plainPaths(definition?.spec.versions.find(({ name }) => name === version)?.additionalPrinterColumns)
}

/** Names of a hit's printed columns, without those that duplicate other columns. */
export function printedColumnNames({ columns = {}, node, ready, status }: Hit): string[] {
  const ownColumns: Record<string, string | undefined> = { 'print:Node': node, 'print:Ready': ready, 'print:Status': status }
  return Object.keys(columns).filter((name) => !STANDARD_COLUMNS.has(name) && columns[name] !== ownColumns[name])
}

/** JSONPaths without filters, which the query language does not support. */
export function plainPaths(columns: { jsonPath: string }[] = []): string[] {
  return columns.map(({ jsonPath }) => jsonPath).filter((path) => /^(\.[\w-]+(\[\d+\])?)+$/.test(path) && !STANDARD_COLUMNS.has(path))
}
