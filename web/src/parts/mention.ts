// Objects that a printed column names. Pure.
import { quote } from '../api/query'
import type { Hit } from '../api/types'

/** Kinds without a namespace; their Events are in the namespace `default`. */
const CLUSTER_SCOPED = new Set(['node', 'namespace', 'persistentvolume', 'cluster'])

/** The query for the object of an Event, whose column has the kind and the name: `pod/web-0`. */
export function mentionOf({ kind, apiVersion, cluster, namespace }: Pick<Hit, 'kind' | 'apiVersion' | 'cluster' | 'namespace'>, column: string, value: string): string | undefined {
  const isEvent = kind === 'Event' && (apiVersion === 'v1' || apiVersion.startsWith('events.k8s.io/'))
  const [, of, name] = /^([a-z][a-z0-9.-]*)\/(\S+)$/.exec(value) ?? []
  if (!isEvent || column !== 'print:Object' || of === undefined || name === undefined) return undefined
  const where = namespace === undefined || CLUSTER_SCOPED.has(of) ? '' : ` ns:=${quote(namespace)}`
  return `kind:${of} name:=${quote(name)}${where} cluster:=${quote(cluster)}`
}
