// Sends all requests of the UI: same origin, the session's cookie, and Kubernetes Status errors as exceptions.
import { UNREACHABLE } from './connection'
import { parseJson, readJson } from './json'

/** An error of one field. */
export interface Cause {
  reason?: string
  message?: string
  field?: string
}

export class ApiError extends Error {
  readonly code: number
  readonly reason: string
  readonly causes: Cause[]

  constructor(code: number, reason: string, message: string, causes: Cause[] = []) {
    super(message)
    this.code = code
    this.reason = reason
    this.causes = causes
  }
}

/** No server has responded to a request: the banner of the page reports it. */
export class Unreachable extends Error {
  constructor() {
    super('the server cannot be reached')
  }
}

/** The error that a view itself reports; a lost connection is reported once, for the whole page. */
export const reported = (error: unknown): unknown => (error instanceof Unreachable ? undefined : (error ?? undefined))

/** An error of `fetch` or of reading a response: browsers report a lost connection as a TypeError. */
export function unreachable(error: unknown): unknown {
  if (!(error instanceof TypeError)) return error
  window.dispatchEvent(new Event(UNREACHABLE))
  return new Unreachable()
}

/** Sent with each request. Cross-site forms cannot set it, so the server refuses requests without it. */
const HEADERS = { 'X-Crowsnest-Client': 'web' }

/** Dispatched when a response reports that the session has ended. */
export const SIGNED_OUT = 'crowsnest-signed-out'
/** The server's session endpoint: the current user, and the identity of an offered token. */
export const SESSION = '/ui/session'
export const SIGN_IN = '/ui/sign-in'
/** Milliseconds after which a server that does not respond is unreachable. */
const PATIENCE = 5_000

export async function request(path: string, init: RequestInit = {}): Promise<Response> {
  const response = await fetch(path, { ...init, credentials: 'same-origin', headers: { ...HEADERS, ...init.headers } }).catch((error: unknown) => {
    throw unreachable(error)
  })
  if (response.ok) return response
  const error = await toError(response)
  if (error.code === 401 && path !== SESSION && path !== SIGN_IN) window.dispatchEvent(new CustomEvent<ApiError>(SIGNED_OUT, { detail: error }))
  throw error
}

/** True if the server responds at all. */
export function responds(): Promise<boolean> {
  return fetch(SESSION, { credentials: 'same-origin', headers: HEADERS, signal: AbortSignal.timeout(PATIENCE) }).then(
    () => true,
    () => false,
  )
}

export async function getJson<T>(path: string, signal?: AbortSignal): Promise<T> {
  const response = await request(path, { headers: { Accept: 'application/json' }, signal: signal ?? null })
  return readJson<T>(response)
}

export async function getText(path: string, accept: string, signal?: AbortSignal): Promise<string> {
  const response = await request(path, { headers: { Accept: accept }, signal: signal ?? null })
  return response.text()
}

async function toError(response: Response): Promise<ApiError> {
  const text = await response.text()
  try {
    // Errors have the encoding that was requested, as other responses do.
    const inYaml = response.headers.get('Content-Type')?.includes('yaml') ?? false
    const read: (text: string) => unknown = inYaml ? (await import('yaml')).parse : parseJson
    const status = (read(text) ?? {}) as { message?: string; reason?: string; details?: { causes?: Cause[] } }
    return new ApiError(response.status, status.reason ?? '', status.message ?? response.statusText, status.details?.causes)
  } catch {
    return new ApiError(response.status, '', text || response.statusText)
  }
}

/** The cluster name of the control plane in searches. */
export const CONTROL_PLANE = '@control-plane'

/** The API root of a cluster: the control plane's own, or a member's through the cluster proxy. */
export function clusterRoot(cluster: string): string {
  return cluster === CONTROL_PLANE
    ? ''
    : `/apis/cluster.karmada.io/v1alpha1/clusters/${encodeURIComponent(cluster)}/proxy`
}

/** The API group of an apiVersion; empty for the core group. */
export const groupOf = (apiVersion: string) => (apiVersion.includes('/') ? (apiVersion.split('/')[0] ?? '') : '')

/** A kind or resource with its group, as queries and kubectl name it: `deployments.apps`, or `pods` for the core group. */
export function qualified(name: string, apiVersion: string): string {
  const group = groupOf(apiVersion)
  return group ? `${name}.${group}` : name
}

/** Compares group and kind, since another group may have a kind of the same name. */
export const isKind = (of: { apiVersion?: string | undefined; kind?: string | undefined }, group: string, kind: string) => of.kind === kind && of.apiVersion !== undefined && groupOf(of.apiVersion) === group

export interface ObjectRef {
  cluster: string
  apiVersion: string
  resource: string
  namespace?: string | undefined
  name: string
}

/** The path of one object in its cluster. */
export function objectPath(ref: ObjectRef): string {
  const group = ref.apiVersion.includes('/') ? `/apis/${ref.apiVersion}` : `/api/${ref.apiVersion}`
  const namespace = ref.namespace ? `/namespaces/${ref.namespace}` : ''
  return `${clusterRoot(ref.cluster)}${group}${namespace}/${ref.resource}/${encodeURIComponent(ref.name)}`
}
