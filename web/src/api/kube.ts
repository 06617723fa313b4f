// Kubernetes API client of the fleet and propagation views: queries, writes, and discovery of resources.
import { ApiError, CONTROL_PLANE, getJson, objectPath, request, type ObjectRef } from './client'
import { parseJson, printJson, readJson } from './json'
import { ReadCache } from './readCache'
import type { Facets, KubeObject, SkippedCluster } from './types'
import { API } from './searchApi'

/** Field manager of writes. */
const FIELD_MANAGER = 'crowsnest-ui'
/** Timeout of requests to a member, in milliseconds. */
const MEMBER_TIMEOUT_MS = 10_000
const CACHED_FROM_ANNOTATION = 'resource.karmada.io/cached-from-cluster'

/** Full manifests of the objects in all clusters that match a query and that the user may read, up to a limit. */
export async function queryObjects<T extends KubeObject>(q: string, limit: number, signal?: AbortSignal): Promise<T[]> {
  const response = await request(`${API}/export?format=jsonl&limit=${limit}&q=${encodeURIComponent(q)}`, { signal: signal ?? null })
  const lines = (await response.text()).split('\n')
  return lines.filter((line) => line !== '').map((line) => parseJson(line) as T)
}

/** The cluster of an object returned by a query. */
export function clusterOf(object: KubeObject): string {
  return object.metadata.annotations?.[CACHED_FROM_ANNOTATION] ?? CONTROL_PLANE
}

export interface CountResult {
  total: number
  facets: Facets
  skipped: SkippedCluster[]
}

/** Number of objects that match a query, with the counts of these facets. */
export function countObjects(q: string, facets: string[], signal?: AbortSignal): Promise<CountResult> {
  return getJson<CountResult>(`${API}/query?limit=0&facets=${facets.join()}&q=${encodeURIComponent(q)}`, signal)
}

/** A member did not respond within the timeout. */
export class TimeoutError extends Error {}

/** Runs a request to a member with a timeout, because a member that hangs must not block the page. Throws TimeoutError. */
export async function withTimeout<T>(send: (signal: AbortSignal) => Promise<T>, signal?: AbortSignal): Promise<T> {
  const timeout = AbortSignal.timeout(MEMBER_TIMEOUT_MS)
  try {
    return await send(signal ? AbortSignal.any([signal, timeout]) : timeout)
  } catch (error) {
    if (timeout.aborted && !signal?.aborted) throw new TimeoutError()
    throw error
  }
}

export function getObject<T extends KubeObject>(ref: ObjectRef, signal?: AbortSignal): Promise<T> {
  return getJson<T>(objectPath(ref), signal)
}

interface ApiResource {
  name: string
  kind: string
  namespaced: boolean
}

/** Resources of a group version in the control plane, by its path. */
const discovery = new ReadCache(async (path) => (await getJson<{ resources: ApiResource[] }>(path)).resources)

/** The resource of a kind in the control plane; undefined if it is not served. */
export async function discoverResource(apiVersion: string, kind: string): Promise<ApiResource | undefined> {
  const path = apiVersion.includes('/') ? `/apis/${apiVersion}` : `/api/${apiVersion}`
  try {
    return (await discovery.read(path)).find((resource) => resource.kind === kind && !resource.name.includes('/'))
  } catch (error) {
    if (error instanceof ApiError && error.code === 404) return undefined
    throw error
  }
}

/** Reference to an object of the control plane, with its discovered resource; undefined if its kind is not served. */
export async function discoverRef(object: { apiVersion: string; kind: string; metadata: { name: string; namespace?: string | undefined } }): Promise<ObjectRef | undefined> {
  const resource = await discoverResource(object.apiVersion, object.kind)
  if (!resource) return undefined
  const { name, namespace } = object.metadata
  return { cluster: CONTROL_PLANE, apiVersion: object.apiVersion, resource: resource.name, namespace: resource.namespaced ? namespace || 'default' : undefined, name }
}

export interface SendOptions {
  /** Media type of the body; default: JSON. */
  contentType?: string
  /** Cancels the request. */
  signal?: AbortSignal | undefined
}

/** Sends a request with a JSON body. Throws ApiError if the server refuses it. */
export function send(method: string, path: string, body?: unknown, { contentType = 'application/json', signal }: SendOptions = {}): Promise<Response> {
  return request(path, {
    method,
    headers: { 'Content-Type': contentType, Accept: 'application/json' },
    signal: signal ?? null,
    ...(body !== undefined && { body: printJson(body) }),
  })
}

export interface WriteOptions {
  dryRun: boolean
  /** Takes over fields that another manager owns. */
  force?: boolean
}

/**
 * Stores an object in the control plane. An object with a resourceVersion replaces that version; any other is applied server-side, which
 * keeps the fields of other managers.
 */
export async function storeObject(object: KubeObject, { dryRun, force = false }: WriteOptions): Promise<KubeObject> {
  const ref = await discoverRef(object)
  if (!ref) throw new ApiError(404, 'NotFound', `no matches for kind "${object.kind}" in version "${object.apiVersion}"`)
  const qualified = ref.namespace && !object.metadata.namespace ? { ...object, metadata: { ...object.metadata, namespace: ref.namespace } } : object
  const options = `fieldManager=${FIELD_MANAGER}&fieldValidation=Strict${dryRun ? '&dryRun=All' : ''}`
  const isReplacement = object.metadata.resourceVersion !== undefined
  const response = isReplacement
    ? await send('PUT', `${objectPath(ref)}?${options}`, qualified)
    : await send('PATCH', `${objectPath(ref)}?${options}${force ? '&force=true' : ''}`, qualified, { contentType: 'application/apply-patch+yaml' })
  return readJson<KubeObject>(response)
}

/** Changes some fields of an object with a JSON merge patch. */
export async function patchObject(ref: ObjectRef, change: unknown): Promise<void> {
  await send('PATCH', `${objectPath(ref)}?fieldManager=${FIELD_MANAGER}`, change, { contentType: 'application/merge-patch+json' })
}

/** Creates an object in the control plane. */
export async function createObject(apiVersion: string, resource: string, namespace: string | undefined, body: unknown): Promise<unknown> {
  const path = objectPath({ cluster: CONTROL_PLANE, apiVersion, resource, namespace, name: '' }).replace(/\/$/, '')
  const response = await send('POST', `${path}?fieldManager=${FIELD_MANAGER}`, body)
  return readJson<unknown>(response)
}

/** Deletes an object; its dependents are deleted in the background. */
export async function deleteObject(ref: ObjectRef): Promise<void> {
  await send('DELETE', objectPath(ref), { apiVersion: 'v1', kind: 'DeleteOptions', propagationPolicy: 'Background' })
}
