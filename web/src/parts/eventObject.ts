// Search query for the object that an Event is about. Has no side effects.
import { quote } from '../api/query'
import type { Hit } from '../api/types'

/** Cluster-scoped kinds. Their Events are in the namespace `default`, which is not the namespace of the object. */
const CLUSTER_SCOPED = new Set(['node', 'namespace', 'persistentvolume', 'cluster'])

/** Query for the object in the printed column `Object` of an Event, such as `pod/web-0`; undefined for other columns and kinds. */
export function eventObjectQuery({ kind, apiVersion, cluster, namespace }: Pick<Hit, 'kind' | 'apiVersion' | 'cluster' | 'namespace'>, column: string, value: string): string | undefined {
  const isEvent = kind === 'Event' && (apiVersion === 'v1' || apiVersion.startsWith('events.k8s.io/'))
  const [, objectKind, name] = /^([a-z][a-z0-9.-]*)\/(\S+)$/.exec(value) ?? []
  if (!isEvent || column !== 'print:Object' || objectKind === undefined || name === undefined) return undefined
  const namespaceTerm = namespace === undefined || CLUSTER_SCOPED.has(objectKind) ? '' : ` ns:=${quote(namespace)}`
  return `kind:${objectKind} name:=${quote(name)}${namespaceTerm} cluster:=${quote(cluster)}`
}
