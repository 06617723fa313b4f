// Client of `access.crowsnest.io/v1alpha1`. See docs/ACCESS.md.
import { writeAddress } from '../../api/address'
import { qualifiedName, type ObjectRef } from '../../api/client'
import { readJson } from '../../api/json'
import { send } from '../../api/kube'
import type { SkippedCluster } from '../../api/types'

const API_PATH = '/apis/access.crowsnest.io/v1alpha1'

export interface Reference {
  kind: string
  namespace?: string
  name: string
}

export interface Grant {
  cluster: string
  subject: Reference
  /** Absent: all namespaces. */
  namespace?: string
  /** Absent for `system:masters`. */
  binding?: Reference
  role?: Reference
}

export interface ReviewedCluster {
  name: string
  state: 'Complete' | 'Stale' | 'Unknown'
  evaluationError?: string
  /** Age of the cached rules of a stale cluster. */
  ageSeconds?: number
}

export interface AccessReview {
  status: {
    grants: Grant[]
    clusters: ReviewedCluster[]
    warnings: string[]
    remainingItemCount?: number
  }
}

/** A review of the roles of a subject. A held role has the fields of a grant. */
interface SubjectReview {
  status: Omit<AccessReview['status'], 'grants'> & { roles: Grant[] }
}

/** An action as a user enters it. */
export interface Action {
  verb: string
  /** `secrets`, `deployments.apps`, `pods/exec`, or a URL path with a leading slash. */
  resource: string
  namespace?: string | undefined
  name?: string | undefined
  /** Absent: all clusters. */
  cluster?: string | undefined
  /** `Cluster`: objects of the resource have no namespace. */
  scope?: string | undefined
}

const clustersOf = (cluster: string | undefined) => (cluster ? { clusters: [cluster] } : {})

/** The spec of a ResourceAccessReview for an action. */
export function reviewSpec({ verb, resource, namespace, name, cluster, scope }: Action): Record<string, unknown> {
  if (resource.startsWith('/')) return { nonResourceAttributes: { verb, path: resource }, ...clustersOf(cluster) }
  const [type = '', subresource] = resource.split('/')
  const [plural = '', ...group] = type.split('.')
  const resourceAttributes = {
    verb,
    resource: plural,
    ...(group.length > 0 && { group: group.join('.') }),
    ...(subresource && { subresource }),
    ...(namespace && { namespace }),
    ...(name && { name }),
  }
  return { resourceAttributes, ...(!namespace && scope !== 'Cluster' && { namespaces: ['*'] }), ...clustersOf(cluster) }
}

/** The subjects that may perform an action. */
export async function createAccessReview(action: Action, signal?: AbortSignal): Promise<AccessReview> {
  return readJson<AccessReview>(await send('POST', `${API_PATH}/resourceaccessreviews`, { spec: reviewSpec(action) }, { signal }))
}

/** The spec of a SubjectRulesReview: `ann`, `user/ann`, `group/sre` or `sa/shop/web`. Undefined if the text is not a subject. */
export function subjectSpec(text: string, cluster?: string): Record<string, unknown> | undefined {
  const subject = parseSubject(text)
  return subject && { ...subject, ...clustersOf(cluster) }
}

function parseSubject(text: string): Record<string, unknown> | undefined {
  const [kind = '', ...rest] = text.split('/')
  const name = rest.join('/')
  if (kind === 'sa') return rest.length === 2 && rest.every(Boolean) ? { user: `system:serviceaccount:${rest.join(':')}` } : undefined
  if (kind === 'group') return name ? { groups: [name] } : undefined
  if (kind === 'user') return name ? { user: name } : undefined
  return text ? { user: text } : undefined
}

/** The roles of a subject, as grants. */
export async function createSubjectReview(spec: Record<string, unknown>, signal?: AbortSignal): Promise<AccessReview> {
  const { status } = await readJson<SubjectReview>(await send('POST', `${API_PATH}/subjectrulesreviews`, { spec }, { signal }))
  const { roles, ...others } = status
  return { status: { ...others, grants: roles } }
}

/** Clusters whose rules are outdated or unknown, with the reasons. */
export function incompleteClusters(clusters: readonly ReviewedCluster[]): SkippedCluster[] {
  return clusters
    .filter(({ state }) => state !== 'Complete')
    .map(({ name, state, evaluationError, ageSeconds }) => ({
      cluster: name,
      reason: evaluationError ? `${state}: ${evaluationError}` : state,
      ...(ageSeconds !== undefined && { ageSeconds }),
    }))
}

/** A subject as a user enters it: `sa/shop/web`. */
export function subjectText({ kind, namespace, name }: Reference): string {
  return kind === 'ServiceAccount' ? `sa/${namespace ?? ''}/${name}` : `${kind.toLowerCase()}/${name}`
}

/** Address of the page with the roles of a subject. */
export function subjectAddress(subject: Reference, cluster?: string): string {
  return `/who-can${writeAddress({ subject: subjectText(subject), cluster })}`
}

/** Address of the page with the subjects that may get an object in its cluster. A request for a Namespace is a request in it. */
export function accessAddress({ cluster, apiVersion, resource, namespace, name }: ObjectRef): string {
  const within = apiVersion === 'v1' && resource === 'namespaces' ? name : namespace
  return `/who-can${writeAddress({ verb: 'get', resource: qualifiedName(resource, apiVersion), name, namespace: within, cluster, scope: within ? undefined : 'Cluster' })}`
}

/** Text of a reference: `Role shop/secrets`; a dash for the missing binding of system:masters. */
export const referenceText = (reference: Reference | undefined): string =>
  reference === undefined ? '–' : `${reference.kind} ${reference.namespace ? `${reference.namespace}/` : ''}${reference.name}`
