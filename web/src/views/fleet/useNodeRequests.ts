import { viewErrorOf } from '../../api/client'
import { readNodeRequests, type NodeRequests } from '../../api/nodeRequests'
import { useAccessReview } from '../../api/useCanI'
import { usePolledQuery } from '../../parts/polledQuery'

/** Polling interval in milliseconds. */
const REFRESH_INTERVAL_MS = 15_000

/**
 * Pods and requests of a cluster's nodes. Undefined until the cluster allows the user to list all pods: amounts of some namespaces would look
 * like those of the nodes. Undefined after an error other than a lost connection, because the last amounts would look current.
 */
export function useNodeRequests(cluster: string): NodeRequests | undefined {
  const isAllowed = useAccessReview({ cluster, verb: 'list', resource: 'pods' }) === true
  const requests = usePolledQuery(['requests of nodes', cluster], (signal) => readNodeRequests(cluster, signal), REFRESH_INTERVAL_MS, isAllowed)
  const isCurrent = !requests.isPlaceholderData && viewErrorOf(requests.error) === undefined
  return isAllowed && isCurrent ? requests.data : undefined
}
