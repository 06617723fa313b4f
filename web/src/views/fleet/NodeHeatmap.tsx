import { Link } from 'wouter'
import { objectAddress } from '../../api/address'
import { getJson } from '../../api/client'
import type { Groups } from '../../api/types'
import { API } from '../../api/useSearch'
import { usePolledQuery } from '../../parts/polledQuery'
import { formatNumber } from '../../parts/format'
import { useTextOf } from '../../text'
import { fleetText } from '../../text/fleet'
import { nodeUsages } from './nodeUsages'
import { useNodes } from './Nodes'

/** Polling interval in milliseconds. */
const REFRESH_INTERVAL_MS = 15_000

/** Heatmap of a cluster's nodes: percentage of the allocatable pods that run on each. */
export function NodeHeatmap({ cluster }: { cluster: string }) {
  const t = useTextOf(fleetText)
  const nodes = useNodes(`cluster:${cluster}`)
  const q = `kind:pod cluster:${cluster} -status:Completed,Succeeded,Failed group:node`
  const pods = usePolledQuery(['pods of nodes', cluster], (signal) => getJson<{ groups?: Groups }>(`${API}/query?limit=0&facets=&q=${encodeURIComponent(q)}`, signal), REFRESH_INTERVAL_MS)
  const cells = nodeUsages(nodes.data?.nodes ?? [], pods.data?.groups?.values ?? [])
  if (cells.length === 0 || !pods.data) return null
  return (
    <ul className="heat" aria-label={t.podsOfNodes}>
      {cells.map(({ node, pods, capacity, percent, level }) => {
        const label = t.podsOfNode(node, formatNumber(pods), formatNumber(capacity))
        return (
          <li key={node}>
            <Link className={level} href={objectAddress({ cluster, apiVersion: 'v1', resource: 'nodes', name: node })} aria-label={`${label} (${percent} %)`} title={label}>
              {percent}
            </Link>
          </li>
        )
      })}
    </ul>
  )
}
