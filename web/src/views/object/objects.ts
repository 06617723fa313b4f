// Reads and writes one object in its cluster, with the user's own permissions.
import { ApiError, getJson, objectPath, request, type ObjectRef } from '../../api/client'
import type { Difference } from '../../api/propagation'
import { quote } from '../../api/query'
import type { Hit, KubeObject } from '../../api/types'
import { API } from '../../api/searchApi'

/** In a dry run the cluster processes the request without storing the result. */
export type WriteMode = 'dry-run' | 'real'

export const isSecret = ({ apiVersion, resource }: ObjectRef) => apiVersion === 'v1' && resource === 'secrets'

/** Parameters of an object in the search API. */
export function objectParameters({ cluster, apiVersion, resource, namespace, name }: ObjectRef): string {
  const parameters = { cluster, apiVersion, resource, ...(namespace && { namespace }), name }
  return new URLSearchParams(parameters).toString()
}

/** Query for the objects of a kind, namespace and name in all clusters. */
export function copiesQuery({ apiVersion, resource, namespace, name }: Omit<ObjectRef, 'cluster'>): string {
  return `kind:${resource} name:=${quote(name)}${namespace ? ` ns:=${quote(namespace)}` : ''} apiVersion:=${quote(apiVersion)}`
}

/** Selects a version of an object: by its seq and the time of its end, or the one of a time in Unix milliseconds. */
export type VersionSelector = { seq: number; end?: string | undefined } | { at: number }

/** Replicas with their own stores observe the end of a version at slightly different times. */
const MAX_END_DIFFERENCE_MS = 5_000

/**
 * The version in which a hit matched; undefined for a hit of the present. `moment` is the time of its query in Unix seconds. A version that has ended
 * has a seq, since the times of its begin and end are in seconds and can be those of other versions.
 */
export function versionOfHit({ seq, until, deleted }: Pick<Hit, 'seq' | 'until' | 'deleted'>, moment: number | undefined): VersionSelector | undefined {
  if (seq !== undefined) return { seq, end: until ?? deleted }
  return moment === undefined ? undefined : { at: moment * 1_000 }
}

/** A cached version of an object. `seq` is the store's number of the change that created it. */
export interface Version {
  seq: number
  resourceVersion: string
  generation: number
  from: string
  until?: string
  deleted?: boolean
}

/**
 * Combines the versions of a generation, since only the status differs between them: the result is the last version, with the start time of the
 * first. Versions without a generation are kept. The order is newest first.
 */
export function toSpecVersions(versions: readonly Version[]): Version[] {
  const result: Version[] = []
  for (const version of versions) {
    const newer = result.at(-1)
    const isSame = newer !== undefined && version.generation !== 0 && version.generation === newer.generation && newer.deleted === version.deleted
    if (isSame) result[result.length - 1] = { ...newer, from: version.from }
    else result.push(version)
  }
  return result
}

/**
 * The selected version; undefined if there is none. `versions` are in the order newest first. Replicas with their own stores number versions
 * separately, so a seq with another end is that of another version: then the version with the closest end is selected.
 */
export function findVersion(versions: readonly Version[], selector: VersionSelector): Version | undefined {
  if ('at' in selector) return versions.find(({ from }) => Date.parse(from) <= selector.at)
  const { seq, end } = selector
  const numbered = versions.find((version) => version.seq === seq)
  return end === undefined || numbered?.until === end ? numbered : closestEnd(versions, Date.parse(end))
}

/** The version that ended closest to a time in Unix milliseconds; the newest of several. */
function closestEnd(versions: readonly Version[], end: number): Version | undefined {
  const distances = versions.flatMap((version) => (version.until === undefined ? [] : [{ version, distance: Math.abs(Date.parse(version.until) - end) }]))
  return distances.filter(({ distance }) => distance <= MAX_END_DIFFERENCE_MS).sort((a, b) => a.distance - b.distance)[0]?.version
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

/** True for fields that change continuously: status and metadata of the server. */
export const isVolatile = (pointer: string) => /^\/(status|metadata\/(resourceVersion|generation|managedFields))(\/|$)/.test(pointer)

/** A JSON pointer as a field path: `spec.containers[0].image`. */
export function toFieldPath(pointer: string): string {
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

/** A version of an object from the cache, without the values of Secrets; undefined if the cache does not have it. */
export async function readPastObject(ref: ObjectRef, selector: VersionSelector, signal?: AbortSignal): Promise<{ object: KubeObject; version: Version } | undefined> {
  const history = await readHistory(ref, signal).catch((error: unknown) => {
    if (error instanceof ApiError && error.code === 404) return undefined
    throw error
  })
  const version = findVersion(history?.versions ?? [], selector)
  if (!version) return undefined
  const object = await readVersion(ref, version.seq, signal)
  return { object: isSecret(ref) ? withoutValues(object) : object, version }
}

/** A Secret from the cache with empty values; no request is sent to its cluster. Throws if it is not cached. */
export async function readSecretWithoutValues(ref: ObjectRef, signal?: AbortSignal): Promise<KubeObject> {
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

/** The response to a write as YAML, with its warnings. */
export interface WriteResponse {
  text: string
  warnings: string[]
}

async function send(method: string, path: string, mode: WriteMode, body: string | undefined, contentType: string): Promise<WriteResponse> {
  const dry = mode === 'dry-run' ? `${path.includes('?') ? '&' : '?'}dryRun=All` : ''
  const headers = { Accept: 'application/yaml', ...(body !== undefined && { 'Content-Type': contentType }) }
  const response = await request(path + dry, { method, headers, ...(body !== undefined && { body }) })
  return { text: await response.text(), warnings: readWarnings(response.headers.get('Warning')) }
}

/** Texts of `Warning: 299 - "…"` headers. */
export function readWarnings(header: string | null): string[] {
  return [...(header ?? '').matchAll(/\d{3} \S+ "((?:[^"\\]|\\.)*)"/g)].map(([, text]) => (text ?? '').replace(/\\(.)/g, '$1'))
}

/** Replaces an object. The server refuses unknown fields, and an outdated resourceVersion (409). */
export const replaceObject = (ref: ObjectRef, yaml: string, mode: WriteMode) =>
  send('PUT', `${objectPath(ref)}?fieldManager=crowsnest-ui&fieldValidation=Strict`, mode, yaml, 'application/yaml')

/** Creates an object. Fails with 409 if it exists. */
export const createObject = (ref: ObjectRef, yaml: string, mode: WriteMode) =>
  send('POST', `${objectPath({ ...ref, name: '' }).replace(/\/$/, '')}?fieldManager=crowsnest-ui&fieldValidation=Strict`, mode, yaml, 'application/yaml')

/** Deletes an object if it still has this UID. */
export const deleteObject = (ref: ObjectRef, uid: string | undefined, mode: WriteMode) => {
  // If a deletion has a body, API servers ignore the query parameters: without this a dry run would delete.
  const dry = mode === 'dry-run' && { dryRun: ['All'] }
  const options = { apiVersion: 'v1', kind: 'DeleteOptions', propagationPolicy: 'Background', ...(uid && { preconditions: { uid } }), ...dry }
  return send('DELETE', objectPath(ref), mode, JSON.stringify(options), 'application/json')
}

export const scaleObject = (ref: ObjectRef, replicas: number, mode: WriteMode) =>
  send('PATCH', `${objectPath(ref)}/scale?fieldManager=crowsnest-ui`, mode, JSON.stringify({ spec: { replicas } }), 'application/merge-patch+json')

/** Restarts a workload as `kubectl rollout restart` does, by an annotation of its pod template. */
export const restartObject = (ref: ObjectRef, at: Date, mode: WriteMode) => {
  const annotations = { 'kubectl.kubernetes.io/restartedAt': at.toISOString().replace(/\.\d+Z$/, 'Z') }
  const body = { spec: { template: { metadata: { annotations } } } }
  return send('PATCH', `${objectPath(ref)}?fieldManager=crowsnest-ui`, mode, JSON.stringify(body), 'application/merge-patch+json')
}
