import { ApiError } from '../../api/client'
import { TimeoutError } from '../../api/kube'
import type { ObjectText } from '../../text/object'

/** Why a cluster refused a request. */
export function explain(error: unknown, cluster: string, t: ObjectText): string {
  if (error instanceof TimeoutError) return t.silent(cluster)
  if (error instanceof ApiError && error.code === 403) return t.refused(cluster, error.message)
  if (error instanceof ApiError) return t.answers(cluster, error.message, error.code)
  return error instanceof Error ? error.message : String(error)
}
