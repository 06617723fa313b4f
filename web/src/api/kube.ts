// Kubernetes API of the fleet and propagation views: searching, writing objects, and discovery of kinds.
import { ApiError, CONTROL_PLANE, getJson, objectPath, request, type ObjectRef } from './client'
import { parseJson, printJson, readJson } from './json'
import type { Facets, KubeObject, Skipped } from './types'
import { API } from './useSearch'

/** Field manager of writes. */
const MANAGER = 'crowsnest-ui'
/** Timeout of requests to a member, in milliseconds. */
const MEMBER_TIMEOUT = 10_000
const CACHED_FROM = 'resource.karmada.io/cached-from-cluster'

/** Whole objects that match a query, up to a limit: those that the user may read, in all clusters. */
export async function objectsOf<T extends KubeObject>(q: string, most: number, signal?: AbortSignal): Promise<T[]> {
  const response = await request(`${API}/export?format=jsonl&limit=${most}&q=${encodeURIComponent(q)}`, { signal: signal ?? null })
  const lines = (await response.text()).split('\n')
  return lines.filter((line) => line !== '').map((line) => parseJson(line) as T)
}

/** Where an object was found. */
export function clusterOf(object: KubeObject): string {
  return object.metadata.annotations?.[CACHED_FROM] ?? CONTROL_PLANE
}

export interface CountResult {
  total: number
  facets: Facets
  skipped: Skipped[]
}

export function countObjects(q: string, facets: string[], signal?: AbortSignal): Promise<CountResult> {
  return getJson<CountResult>(`${API}/query?limit=0&facets=${facets.join()}&q=${encodeURIComponent(q)}`, signal)
}

/** A member did not respond in time. */
export class TimeoutError extends Error {}

/** Runs a request to a member with a timeout, because a member that hangs must not block the page. Throws TimeoutError. */
export async function withTimeout<T>(send: (signal: AbortSignal) => Promise<T>, signal?: AbortSignal): Promise<T> {
  const timeout = AbortSignal.timeout(MEMBER_TIMEOUT)
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

const discovered = new Map<string, Promise<ApiResource[]>>()

/** The resource of a kind in the control plane; undefined if it is not served. */
export async function resourceOf(apiVersion: string, kind: string): Promise<ApiResource | undefined> {
  const path = apiVersion.includes('/') ? `/apis/${apiVersion}` : `/api/${apiVersion}`
  let asked = discovered.get(path)
  if (!asked) {
    asked = getJson<{ resources: ApiResource[] }>(path).then(({ resources }) => resources)
    discovered.set(path, asked)
    // A failed request is sent again the next time.
    asked.catch(() => discovered.delete(path))
  }
  try {
    return (await asked).find((resource) => resource.kind === kind && !resource.name.includes('/'))
  } catch (error) {
    if (error instanceof ApiError && error.code === 404) return undefined
    throw error
  }
}

/** The path of an object of the control plane; undefined if its kind is not served. */
export async function refOf(object: { apiVersion: string; kind: string; metadata: { name: string; namespace?: string | undefined } }): Promise<ObjectRef | undefined> {
  const resource = await resourceOf(object.apiVersion, object.kind)
  if (!resource) return undefined
  const { name, namespace } = object.metadata
  return { cluster: CONTROL_PLANE, apiVersion: object.apiVersion, resource: resource.name, namespace: resource.namespaced ? namespace || 'default' : undefined, name }
}

export function send(method: string, path: string, body?: unknown, type = 'application/json'): Promise<Response> {
  return request(path, {
    method,
    headers: { 'Content-Type': type, Accept: 'application/json' },
    ...(body !== undefined && { body: printJson(body) }),
  })
}

export interface WriteOptions {
  dryRun: boolean
  /** Take over fields that another manager owns. */
  force?: boolean
}

/**
 * Stores an object. An object with a resourceVersion replaces that version only; any other is applied server-side, so that
 * other managers' fields are kept.
 */
export async function write(object: KubeObject, { dryRun, force = false }: WriteOptions): Promise<KubeObject> {
  const ref = await refOf(object)
  if (!ref) throw new ApiError(404, 'NotFound', `no matches for kind "${object.kind}" in version "${object.apiVersion}"`)
  const named = ref.namespace && !object.metadata.namespace ? { ...object, metadata: { ...object.metadata, namespace: ref.namespace } } : object
  const options = `fieldManager=${MANAGER}&fieldValidation=Strict${dryRun ? '&dryRun=All' : ''}`
  const replaces = object.metadata.resourceVersion !== undefined
  const response = replaces
    ? await send('PUT', `${objectPath(ref)}?${options}`, named)
    : await send('PATCH', `${objectPath(ref)}?${options}${force ? '&force=true' : ''}`, named, 'application/apply-patch+yaml')
  return readJson<KubeObject>(response)
}

/** Changes some fields of an object with a JSON merge patch. */
export async function patch(ref: ObjectRef, change: unknown): Promise<void> {
  await send('PATCH', `${objectPath(ref)}?fieldManager=${MANAGER}`, change, 'application/merge-patch+json')
}

export async function create(apiVersion: string, resource: string, namespace: string | undefined, body: unknown): Promise<unknown> {
  const path = objectPath({ cluster: CONTROL_PLANE, apiVersion, resource, namespace, name: '' }).replace(/\/$/, '')
  const response = await send('POST', `${path}?fieldManager=${MANAGER}`, body)
  return readJson<unknown>(response)
}

export async function remove(ref: ObjectRef): Promise<void> {
  await send('DELETE', objectPath(ref), { apiVersion: 'v1', kind: 'DeleteOptions', propagationPolicy: 'Background' })
}
