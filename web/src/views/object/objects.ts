// Reads and writes one object in its cluster, with the user's own permissions.
import { getJson, objectPath, request, type ObjectRef } from '../../api/client'
import type { Difference } from '../../api/propagation'
import { quote } from '../../api/query'
import type { KubeObject } from '../../api/types'
import { API } from '../../api/useSearch'

/** Dry run: the cluster processes the request without storing it. */
export type WriteMode = 'dry-run' | 'real'

export const isSecret = ({ apiVersion, resource }: ObjectRef) => apiVersion === 'v1' && resource === 'secrets'

/** Parameters of an object in the search API. */
export function objectParameters({ cluster, apiVersion, resource, namespace, name }: ObjectRef): string {
  const given = { cluster, apiVersion, resource, ...(namespace && { namespace }), name }
  return new URLSearchParams(given).toString()
}

/** The query for an object and its namesakes of the same kind in all clusters. */
export function copiesOf({ apiVersion, resource, namespace, name }: Omit<ObjectRef, 'cluster'>): string {
  return `kind:${resource} name:=${quote(name)}${namespace ? ` ns:=${quote(namespace)}` : ''} apiVersion:=${quote(apiVersion)}`
}

export interface Version {
  seq: number
  resourceVersion: string
  generation: number
  from: string
  until?: string
  deleted?: boolean
}

/**
 * Versions with changes of the spec, newest first: one per generation, which is the last version of it and began with the first. Kinds
 * without a generation have all versions.
 */
export function ofSpec(versions: readonly Version[]): Version[] {
  const found: Version[] = []
  for (const version of versions) {
    const newer = found.at(-1)
    const isSame = newer !== undefined && version.generation !== 0 && version.generation === newer.generation && newer.deleted === version.deleted
    if (isSame) found[found.length - 1] = { ...newer, from: version.from }
    else found.push(version)
  }
  return found
}

export interface History {
  versions: Version[]
  keptForSeconds: number
}

/** Differences of two manifests; paths are JSON pointers. */
export interface Diff {
  differences: Difference[]
  more: boolean
}

/** Fields that change continuously. */
export const isNoise = (pointer: string) => /^\/(status|metadata\/(resourceVersion|generation|managedFields))(\/|$)/.test(pointer)

/** A JSON pointer as a field path: `spec.containers[0].image`. */
export function dotted(pointer: string): string {
  const parts = pointer.split('/').slice(1).map((part) => part.replaceAll('~1', '/').replaceAll('~0', '~'))
  return parts.reduce((path, part) => {
    if (/^\d+$/.test(part)) return `${path}[${part}]`
    if (!/^[\w-]+$/.test(part)) return `${path}["${part}"]`
    return path ? `${path}.${part}` : part
  }, '')
}

export const readHistory = (ref: ObjectRef, signal?: AbortSignal) => getJson<History>(`${API}/history?${objectParameters(ref)}`, signal)

export const readVersion = (ref: ObjectRef, seq: number | string, signal?: AbortSignal) =>
  getJson<KubeObject>(`${API}/history?${objectParameters(ref)}&seq=${seq}`, signal)

/** A Secret from the cache, with keys and without values; the cluster is not queried. */
export async function readWithheld(ref: ObjectRef, signal?: AbortSignal): Promise<KubeObject> {
  const { versions } = await readHistory(ref, signal)
  const now = versions.find(({ until }) => until === undefined)
  if (!now) throw new Error(`${ref.name} is not in the cache`)
  return withoutValues(await readVersion(ref, now.seq, signal))
}

/** A Secret with its keys and empty values, and without the annotation that repeats its values. */
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

/** The response to a write, with its warnings. */
export interface WriteResponse {
  text: string
  warnings: string[]
}

async function send(method: string, path: string, mode: WriteMode, body: string | undefined, kind: string): Promise<WriteResponse> {
  const dry = mode === 'dry-run' ? `${path.includes('?') ? '&' : '?'}dryRun=All` : ''
  const headers = { Accept: 'application/yaml', ...(body !== undefined && { 'Content-Type': kind }) }
  const response = await request(path + dry, { method, headers, ...(body !== undefined && { body }) })
  return { text: await response.text(), warnings: readWarnings(response.headers.get('Warning')) }
}

/** Texts of `Warning: 299 - "…"` headers. */
export function readWarnings(header: string | null): string[] {
  return [...(header ?? '').matchAll(/\d{3} \S+ "((?:[^"\\]|\\.)*)"/g)].map(([, text]) => (text ?? '').replace(/\\(.)/g, '$1'))
}

/** Replaces the whole object; unknown fields are refused, and an outdated version as well (409). */
export const replaceObject = (ref: ObjectRef, yaml: string, mode: WriteMode) =>
  send('PUT', `${objectPath(ref)}?fieldManager=crowsnest-ui&fieldValidation=Strict`, mode, yaml, 'application/yaml')

/** Creates an object of this name; it must not exist. */
export const createObject = (ref: ObjectRef, yaml: string, mode: WriteMode) =>
  send('POST', `${objectPath({ ...ref, name: '' }).replace(/\/$/, '')}?fieldManager=crowsnest-ui&fieldValidation=Strict`, mode, yaml, 'application/yaml')

/** Deletes the displayed object only, by its UID. */
export const removeObject = (ref: ObjectRef, uid: string | undefined, mode: WriteMode) => {
  // If a deletion has a body, API servers ignore the query parameters: without this a dry run would delete.
  const dry = mode === 'dry-run' && { dryRun: ['All'] }
  const options = { apiVersion: 'v1', kind: 'DeleteOptions', propagationPolicy: 'Background', ...(uid && { preconditions: { uid } }), ...dry }
  return send('DELETE', objectPath(ref), mode, JSON.stringify(options), 'application/json')
}

export const scaleObject = (ref: ObjectRef, replicas: number, mode: WriteMode) =>
  send('PATCH', `${objectPath(ref)}/scale?fieldManager=crowsnest-ui`, mode, JSON.stringify({ spec: { replicas } }), 'application/merge-patch+json')

/** As `kubectl rollout restart`: a new annotation changes the template. */
export const restartObject = (ref: ObjectRef, at: Date, mode: WriteMode) => {
  const annotations = { 'kubectl.kubernetes.io/restartedAt': at.toISOString().replace(/\.\d+Z$/, 'Z') }
  const body = { spec: { template: { metadata: { annotations } } } }
  return send('PATCH', `${objectPath(ref)}?fieldManager=crowsnest-ui`, mode, JSON.stringify(body), 'application/merge-patch+json')
}
