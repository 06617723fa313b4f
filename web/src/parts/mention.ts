// Objects that a hit or a value of its columns names. Has no side effects.
import { objectAddress, searchAddress } from '../api/address'
import { quote } from '../api/query'
import type { Hit } from '../api/types'
import { eventObjectQuery } from './eventObject'

type Source = Pick<Hit, 'kind' | 'apiVersion' | 'cluster' | 'namespace'>

/** The address of an object without a namespace in the cluster of a hit. */
const clusterScoped = (apiVersion: string, resource: string) => ({ cluster }: Source, name: string) => objectAddress({ cluster, apiVersion, resource, name })

/** The address of the namespace of a hit, and of the node of a pod. */
export const namespaceAddress = clusterScoped('v1', 'namespaces')
export const nodeAddress = clusterScoped('v1', 'nodes')

/** Addresses of the objects in printed columns, by kind and column. */
const PRINTED: Record<string, (hit: Source, value: string) => string | undefined> = {
  'PersistentVolumeClaim print:Volume': clusterScoped('v1', 'persistentvolumes'),
  'PersistentVolumeClaim print:StorageClass': clusterScoped('storage.k8s.io/v1', 'storageclasses'),
  'PersistentVolume print:StorageClass': clusterScoped('storage.k8s.io/v1', 'storageclasses'),
  'PersistentVolume print:Claim': ({ cluster }, value) => {
    const [namespace, name] = value.split('/')
    return namespace && name ? objectAddress({ cluster, apiVersion: 'v1', resource: 'persistentvolumeclaims', namespace, name }) : undefined
  },
  'Ingress print:Class': clusterScoped('networking.k8s.io/v1', 'ingressclasses'),
  'HorizontalPodAutoscaler print:Reference': ({ cluster, namespace = '' }, value) => {
    const [kind, name] = value.split('/')
    return kind && name ? searchAddress({ q: `kind:${quote(kind)} name:=${quote(name)} ns:=${quote(namespace)} cluster:=${quote(cluster)}` }) : undefined
  },
}

/** The address of the object in a requested column of a hit; undefined if the column names none. */
export function addressOfColumn(hit: Source, column: string, value: string): string | undefined {
  if (value === '' || value === '<none>' || value === '<unset>') return undefined
  const q = eventObjectQuery(hit, column, value)
  if (q !== undefined) return searchAddress({ q })
  return column === 'print:Node' ? nodeAddress(hit, value) : PRINTED[`${hit.kind} ${column}`]?.(hit, value)
}
