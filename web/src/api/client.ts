// HTTP client of the UI: same-origin requests with the session's cookie. Kubernetes Status responses become exceptions.
import { UNREACHABLE_EVENT } from './connection'
import { parseJson, readJson } from './json'

/** An error of one field. */
export interface Cause {
  reason?: string
  message?: string
  field?: string
}

/** An error response: HTTP status code, and reason and causes of the Kubernetes Status. */
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

/** The server did not respond to a request. The page's banner reports it, so views do not. */
export class UnreachableError extends Error {
  constructor() {
    super('the server cannot be reached')
  }
}

/** The error that a view must report; undefined for a lost connection, which is reported once for the page. */
export const viewErrorOf = (error: unknown): unknown => (error instanceof UnreachableError ? undefined : (error ?? undefined))

/** Converts the TypeError with which browsers report a lost connection, and announces it on the window. Other errors are returned unchanged. */
export function toUnreachableError(error: unknown): unknown {
  if (!(error instanceof TypeError)) return error
  window.dispatchEvent(new Event(UNREACHABLE_EVENT))
  return new UnreachableError()
}

/** Header of each request. Cross-site forms cannot set it, so the server refuses requests without it. */
const HEADERS = { 'X-Crowsnest-Client': 'web' }

/** Event dispatched on the window when a response reports that the session has ended. */
export const SIGNED_OUT_EVENT = 'crowsnest-signed-out'
/** Session endpoint of the server: the current user, and signing in and out. */
export const SESSION_PATH = '/ui/session'
/** Sign-in endpoint of the server: GET returns the sign-in methods, POST the identity of credentials without signing in. */
export const SIGN_IN_PATH = '/ui/sign-in'
/** Time after which a server that does not respond is considered unreachable. */
const PROBE_TIMEOUT_MS = 5_000

/** Sends a request. Throws ApiError for an error response and UnreachableError if the server does not respond. */
export async function request(path: string, init: RequestInit = {}): Promise<Response> {
  const response = await fetch(path, { ...init, credentials: 'same-origin', headers: { ...HEADERS, ...init.headers } }).catch((error: unknown) => {
    throw toUnreachableError(error)
  })
  if (response.ok) return response
  const error = await toError(response)
  if (error.code === 401 && path !== SESSION_PATH && path !== SIGN_IN_PATH) window.dispatchEvent(new CustomEvent<ApiError>(SIGNED_OUT_EVENT, { detail: error }))
  throw error
}

/** True if the server responds, even with an error. */
export function isServerReachable(): Promise<boolean> {
  return fetch(SESSION_PATH, { credentials: 'same-origin', headers: HEADERS, signal: AbortSignal.timeout(PROBE_TIMEOUT_MS) }).then(
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
    // Errors are encoded like other responses: in the format that the request accepts.
    const inYaml = response.headers.get('Content-Type')?.includes('yaml') ?? false
    const parse: (text: string) => unknown = inYaml ? (await import('yaml')).parse : parseJson
    const status = (parse(text) ?? {}) as { message?: string; reason?: string; details?: { causes?: Cause[] } }
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
export function qualifiedName(name: string, apiVersion: string): string {
  const group = groupOf(apiVersion)
  return group ? `${name}.${group}` : name
}

/** Compares group and kind, since another group may have a kind of the same name. */
export const isKind = (object: { apiVersion?: string | undefined; kind?: string | undefined }, group: string, kind: string) => object.kind === kind && object.apiVersion !== undefined && groupOf(object.apiVersion) === group

/** Identifies an object in a cluster. */
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
