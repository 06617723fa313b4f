import { useQuery } from '@tanstack/react-query'
import { clusterRoot, request } from './client'
import { patiently } from './kube'

export interface Wish {
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

/** Whether the user may perform an action in a cluster, by the cluster's own access review. True until it has responded, or if it fails. */
export function useMay({ cluster, ...wish }: Wish): boolean {
  const asked = useQuery({
    queryKey: ['may', cluster, wish],
    // Short timeout: a member that hangs must not occupy the browser's few connections.
    queryFn: ({ signal: gone }) =>
      patiently(async (signal) => {
        const response = await request(`${clusterRoot(cluster)}/apis/authorization.k8s.io/v1/selfsubjectaccessreviews`, {
          method: 'POST',
          signal,
          headers: { 'Content-Type': 'application/json' },
          body: JSON.stringify({ apiVersion: 'authorization.k8s.io/v1', kind: 'SelfSubjectAccessReview', spec: { resourceAttributes: wish } }),
        })
        return (await response.json()) as { status?: { allowed?: boolean } }
      }, gone),
    staleTime: 60_000,
    retry: false,
  })
  return asked.data?.status?.allowed ?? true
}
