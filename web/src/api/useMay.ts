import { useQuery } from '@tanstack/react-query'
import { clusterRoot, request } from './client'
import { patiently } from './kube'

export interface Wish {
  cluster: string
  verb: string
  /** Of the resource; the core group when absent. */
  group?: string | undefined
  resource: string
  subresource?: string | undefined
  namespace?: string | undefined
  /** One object; any of them when absent. */
  name?: string | undefined
}

/** Whether the reader may do something in a cluster, as the cluster itself says. Until it has said so, and when it can't, one may try. */
export function useMay({ cluster, ...wish }: Wish): boolean {
  const asked = useQuery({
    queryKey: ['may', cluster, wish],
    // A member that hangs must not keep the browser's few connections.
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
