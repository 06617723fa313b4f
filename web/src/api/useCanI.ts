import { useQuery } from '@tanstack/react-query'
import { clusterRoot, request } from './client'
import { useClusterNotes } from './clusterNotes'
import { withTimeout } from './kube'

export interface ResourceAttributes {
  cluster: string
  verb: string
  /** API group of the resource; the core group if absent. */
  group?: string | undefined
  resource: string
  subresource?: string | undefined
  namespace?: string | undefined
  /** A single object; any object if absent. */
  name?: string | undefined
}

const READ_VERBS = new Set(['get', 'list', 'watch'])

/** True if a SelfSubjectAccessReview in a cluster allows the user an action; undefined until the cluster responds, and if the request fails. */
export function useAccessReview({ cluster, ...attributes }: ResourceAttributes): boolean | undefined {
  const review = useQuery({
    queryKey: ['can-i', cluster, attributes],
    // Short timeout: a member that hangs must not occupy the browser's few connections.
    queryFn: ({ signal: cancelled }) =>
      withTimeout(async (signal) => {
        const response = await request(`${clusterRoot(cluster)}/apis/authorization.k8s.io/v1/selfsubjectaccessreviews`, {
          method: 'POST',
          signal,
          headers: { 'Content-Type': 'application/json' },
          body: JSON.stringify({ apiVersion: 'authorization.k8s.io/v1', kind: 'SelfSubjectAccessReview', spec: { resourceAttributes: attributes } }),
        })
        return (await response.json()) as { status?: { allowed?: boolean } }
      }, cancelled),
    staleTime: 60_000,
    retry: false,
  })
  return review.data && (review.data.status?.allowed ?? false)
}

/**
 * True if a cluster allows the user an action ([useAccessReview]), until the cluster responds, and if the request fails. Always false for changes in a
 * cluster that is marked as read-only.
 */
export function useCanI(attributes: ResourceAttributes): boolean {
  const notes = useClusterNotes(attributes.cluster)
  const isAllowed = useAccessReview(attributes)
  if (notes?.isReadOnly && !READ_VERBS.has(attributes.verb)) return false
  return isAllowed ?? true
}
