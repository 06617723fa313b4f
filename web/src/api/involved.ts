// The involved object and the last occurrence of an Event.
import { objectAddress, searchAddress } from './address'
import { groupOf, qualifiedName } from './client'
import { resourceOf } from './kinds'
import type { KubeEvent, KubeObject } from './types'

export interface InvolvedObject {
  apiVersion?: string
  kind?: string
  namespace?: string
  name?: string
}

/** The involved object of core/v1 and events.k8s.io/v1 Events; undefined for other objects. */
export function involvedObjectOf(object: KubeObject): InvolvedObject | undefined {
  const isEvent = object.kind === 'Event' && ['', 'events.k8s.io'].includes(groupOf(object.apiVersion))
  return isEvent ? ((object.involvedObject ?? object.regarding) as InvolvedObject | undefined) : undefined
}

/** The address of the involved object, or of a search for it if the resource of its kind is unknown; undefined if the Event does not name it. */
export function involvedAddress(cluster: string, { apiVersion, kind, namespace, name }: InvolvedObject): string | undefined {
  if (!kind || !name) return undefined
  const resource = apiVersion === undefined ? undefined : resourceOf(apiVersion, kind)
  // Events about objects without a namespace may name the namespace of the Event.
  if (apiVersion !== undefined && resource !== undefined) return objectAddress({ cluster, apiVersion, resource, namespace: CLUSTER_SCOPED.has(kind) ? undefined : namespace || undefined, name })
  return searchAddress({ q: `kind:${qualifiedName(kind, apiVersion ?? '')} name:="${name}"${namespace ? ` ns:="${namespace}"` : ''} cluster:="${cluster}"` })
}

/** The time of the last occurrence, of core/v1 and events.k8s.io/v1 Events. */
export const lastOccurrence = (event: KubeEvent): string | undefined => event.lastTimestamp ?? event.eventTime ?? event.firstTimestamp ?? event.metadata.creationTimestamp

/** Compares Events for sorting by last occurrence, newest first. */
export const newestFirst = (a: KubeEvent, b: KubeEvent): number => (lastOccurrence(b) ?? '').localeCompare(lastOccurrence(a) ?? '')

/** Built-in kinds without a namespace. */
const CLUSTER_SCOPED = new Set(['Node', 'Namespace', 'PersistentVolume', 'StorageClass', 'Cluster', 'ClusterPropagationPolicy', 'ClusterOverridePolicy', 'ClusterResourceBinding', 'ClusterTaintPolicy'])
