// Query for an object that a printed column names. Pure.
import { quote } from '../api/query'
import type { Hit } from '../api/types'

/** Kinds without a namespace; their Events are in the namespace `default`. */
const CLUSTER_SCOPED = new Set(['node', 'namespace', 'persistentvolume', 'cluster'])

/** Query for the object that the column `Object` of an Event names: `pod/web-0`; undefined for other columns. */
export function mentionQuery({ kind, apiVersion, cluster, namespace }: Pick<Hit, 'kind' | 'apiVersion' | 'cluster' | 'namespace'>, column: string, value: string): string | undefined {
  const isEvent = kind === 'Event' && (apiVersion === 'v1' || apiVersion.startsWith('events.k8s.io/'))
  const [, objectKind, name] = /^([a-z][a-z0-9.-]*)\/(\S+)$/.exec(value) ?? []
  if (!isEvent || column !== 'print:Object' || objectKind === undefined || name === undefined) return undefined
  const where = namespace === undefined || CLUSTER_SCOPED.has(objectKind) ? '' : ` ns:=${quote(namespace)}`
  return `kind:${objectKind} name:=${quote(name)}${where} cluster:=${quote(cluster)}`
}
