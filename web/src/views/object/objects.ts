// Reads and writes one object in its own cluster, with the reader's own rights.
import { getJson, objectPath, request, type ObjectRef } from '../../api/client'
import type { Difference } from '../../api/propagation'
import type { KubeObject } from '../../api/types'
import { API } from '../../api/useSearch'

/** What is asked before it is done: the cluster decides on it as on the real thing, and keeps nothing. */
export type Earnest = 'dry-run' | 'real'

export const isSecret = ({ apiVersion, resource }: ObjectRef) => apiVersion === 'v1' && resource === 'secrets'

/** An object as the search API is asked for it. */
export function asked({ cluster, apiVersion, resource, namespace, name }: ObjectRef): string {
  const given = { cluster, apiVersion, resource, ...(namespace && { namespace }), name }
  return new URLSearchParams(given).toString()
}

export interface Version {
  seq: number
  resourceVersion: string
  generation: number
  from: string
  until?: string
  deleted?: boolean
}

export interface History {
  versions: Version[]
  keptForSeconds: number
}

/** What differs between two manifests; paths are JSON pointers. */
export interface Diff {
  differences: Difference[]
  more: boolean
}

/** Parts that change by themselves all the time. */
export const isNoise = (pointer: string) => /^\/(status|metadata\/(resourceVersion|generation|managedFields))(\/|$)/.test(pointer)

/** A JSON pointer as people write paths: `spec.containers[0].image`. */
export function dotted(pointer: string): string {
  const parts = pointer.split('/').slice(1).map((part) => part.replaceAll('~1', '/').replaceAll('~0', '~'))
  return parts.reduce((path, part) => {
    if (/^\d+$/.test(part)) return `${path}[${part}]`
    if (!/^[\w-]+$/.test(part)) return `${path}["${part}"]`
    return path ? `${path}.${part}` : part
  }, '')
}

export const readHistory = (ref: ObjectRef, signal?: AbortSignal) => getJson<History>(`${API}/history?${asked(ref)}`, signal)

export const readVersion = (ref: ObjectRef, seq: number | string, signal?: AbortSignal) =>
  getJson<KubeObject>(`${API}/history?${asked(ref)}&seq=${seq}`, signal)

/** A Secret as the cache knows it, which has its keys and not its values; its cluster is not asked for them. */
export async function readWithheld(ref: ObjectRef, signal?: AbortSignal): Promise<KubeObject> {
  const { versions } = await readHistory(ref, signal)
  const now = versions.find(({ until }) => until === undefined)
  if (!now) throw new Error(`${ref.name} is not there`)
  return withoutValues(await readVersion(ref, now.seq, signal))
}

/** Whatever the cache was told to keep. */
export function withoutValues(secret: KubeObject): KubeObject {
  const blank = (values: unknown) => Object.fromEntries(Object.keys((values ?? {}) as object).map((key) => [key, '']))
  const { 'kubectl.kubernetes.io/last-applied-configuration': _applied, ...annotations } = secret.metadata.annotations ?? {}
  return {
    ...secret,
    metadata: { ...secret.metadata, ...(secret.metadata.annotations && { annotations }) },
    ...(secret.data !== undefined && { data: blank(secret.data) }),
    ...(secret.stringData !== undefined && { stringData: blank(secret.stringData) }),
  }
}

/** What a cluster answers to a write, and what it warns of. */
export interface Written {
  text: string
  warnings: string[]
}

async function send(method: string, path: string, earnest: Earnest, body: string | undefined, kind: string): Promise<Written> {
  const dry = earnest === 'dry-run' ? `${path.includes('?') ? '&' : '?'}dryRun=All` : ''
  const headers = { Accept: 'application/yaml', ...(body !== undefined && { 'Content-Type': kind }) }
  const response = await request(path + dry, { method, headers, ...(body !== undefined && { body }) })
  return { text: await response.text(), warnings: readWarnings(response.headers.get('Warning')) }
}

/** The texts of `Warning: 299 - "…"` headers. */
export function readWarnings(header: string | null): string[] {
  return [...(header ?? '').matchAll(/\d{3} \S+ "((?:[^"\\]|\\.)*)"/g)].map(([, text]) => (text ?? '').replace(/\\(.)/g, '$1'))
}

/** The whole object; fields that its kind has not are refused, and a version that is not the newest, too (409). */
export const replaceObject = (ref: ObjectRef, yaml: string, earnest: Earnest) =>
  send('PUT', `${objectPath(ref)}?fieldManager=crowsnest-ui&fieldValidation=Strict`, earnest, yaml, 'application/yaml')

/** Only the very object that was looked at, not one that came after it under its name. */
export const removeObject = (ref: ObjectRef, uid: string | undefined, earnest: Earnest) => {
  // Where a deletion has a body, an API server takes no notice of the address' parameters: without this a dry run would delete.
  const dry = earnest === 'dry-run' && { dryRun: ['All'] }
  const options = { apiVersion: 'v1', kind: 'DeleteOptions', propagationPolicy: 'Background', ...(uid && { preconditions: { uid } }), ...dry }
  return send('DELETE', objectPath(ref), earnest, JSON.stringify(options), 'application/json')
}

export const scaleObject = (ref: ObjectRef, replicas: number, earnest: Earnest) =>
  send('PATCH', `${objectPath(ref)}/scale?fieldManager=crowsnest-ui`, earnest, JSON.stringify({ spec: { replicas } }), 'application/merge-patch+json')

/** As `kubectl rollout restart` does: a new annotation is a new template. */
export const restartObject = (ref: ObjectRef, at: Date, earnest: Earnest) => {
  const annotations = { 'kubectl.kubernetes.io/restartedAt': at.toISOString().replace(/\.\d+Z$/, 'Z') }
  const body = { spec: { template: { metadata: { annotations } } } }
  return send('PATCH', `${objectPath(ref)}?fieldManager=crowsnest-ui`, earnest, JSON.stringify(body), 'application/merge-patch+json')
}
