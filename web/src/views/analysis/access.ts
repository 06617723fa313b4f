// Client of `access.crowsnest.io/v1alpha1`. See docs/ACCESS.md.
import { readJson } from '../../api/json'
import { send } from '../../api/kube'

const REVIEWS_PATH = '/apis/access.crowsnest.io/v1alpha1/resourceaccessreviews'

interface Reference {
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

/** An action as a user enters it. */
export interface Action {
  verb: string
  /** `secrets`, `deployments.apps`, `pods/exec`, or a URL path with a leading slash. */
  resource: string
  namespace?: string | undefined
  name?: string | undefined
}

/** The spec of a ResourceAccessReview for an action. */
export function reviewSpec({ verb, resource, namespace, name }: Action): Record<string, unknown> {
  if (resource.startsWith('/')) return { nonResourceAttributes: { verb, path: resource } }
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
  return { resourceAttributes, ...(!namespace && { namespaces: ['*'] }) }
}

/** The subjects that may perform an action, in all clusters. */
export async function createAccessReview(action: Action, signal?: AbortSignal): Promise<AccessReview> {
  return readJson<AccessReview>(await send('POST', REVIEWS_PATH, { spec: reviewSpec(action) }, { signal }))
}

/** Text of a reference: `Role shop/secrets`; a dash for the missing binding of system:masters. */
export const referenceText = (reference: Reference | undefined): string =>
  reference === undefined ? '–' : `${reference.kind} ${reference.namespace ? `${reference.namespace}/` : ''}${reference.name}`
