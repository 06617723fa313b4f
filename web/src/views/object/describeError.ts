import { ApiError } from '../../api/client'
import { TimeoutError } from '../../api/kube'
import type { ObjectText } from '../../text/object'

/** Message for a failed request to a cluster. */
export function describeError(error: unknown, cluster: string, t: ObjectText): string {
  if (error instanceof TimeoutError) return t.timedOut(cluster)
  if (error instanceof ApiError && error.code === 403) return t.denied(cluster, error.message)
  if (error instanceof ApiError) return t.errorResponse(cluster, error.message, error.code)
  return error instanceof Error ? error.message : String(error)
}
