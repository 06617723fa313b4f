import { useMemo } from 'react'
import { CONTROL_PLANE } from '../api/client'
import { readClusterSummaries } from '../api/clusters'
import { useCanI } from '../api/useCanI'
import { usePolledQuery } from './polledQuery'

/** Names of all clusters; undefined until they are loaded, and for users who may not list all of them. */
export function useKnownClusters(): ReadonlySet<string> | undefined {
  const canList = useCanI({ cluster: CONTROL_PLANE, verb: 'list', group: 'cluster.karmada.io', resource: 'clusters' })
  const { data } = usePolledQuery(['clusters'], readClusterSummaries, 10_000)
  return useMemo(() => (canList && data ? new Set(data.keys()) : undefined), [canList, data])
}
