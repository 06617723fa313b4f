// Requests and responses of `access.crowsnest.io`. See docs/ACCESS.md.
import { readJson } from '../../api/json'
import { send } from '../../api/kube'

const REVIEWS = '/apis/access.crowsnest.io/v1alpha1/resourceaccessreviews'

interface Reference {
  kind: string
  namespace?: string
  name: string
}

export interface Grant {
  cluster: string
  subject: Reference
  /** Absent: everywhere. */
  namespace?: string
  /** Absent for `system:masters`. */
  binding?: Reference
  role?: Reference
}

export interface AccessReview {
  status: {
    grants: Grant[]
    clusters: { name: string; state: 'Complete' | 'Stale' | 'Unknown'; evaluationError?: string; ageSeconds?: number }[]
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

/** The spec of a review of an action. */
export function reviewOf({ verb, resource, namespace, name }: Action): Record<string, unknown> {
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

export async function accessReview(action: Action): Promise<AccessReview> {
  return readJson<AccessReview>(await send('POST', REVIEWS, { spec: reviewOf(action) }))
}

/** `Role shop/secrets`; system:masters needs no binding. */
export const referenceText = (reference: Reference | undefined): string =>
  reference === undefined ? '–' : `${reference.kind} ${reference.namespace ? `${reference.namespace}/` : ''}${reference.name}`
