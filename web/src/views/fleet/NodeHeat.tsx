import { Link } from 'wouter'
import { objectAddress } from '../../api/address'
import { getJson } from '../../api/client'
import type { Groups } from '../../api/types'
import { API } from '../../api/useSearch'
import { useAsk } from '../../parts/Asking'
import { number } from '../../parts/format'
import { useTextOf } from '../../text'
import { fleetText } from '../../text/fleet'
import { heatOf } from './heat'
import { useNodes } from './Nodes'

const EVERY = 15_000

/** The nodes of a cluster as cells with the share of their pods that is used. */
export function NodeHeat({ cluster }: { cluster: string }) {
  const t = useTextOf(fleetText)
  const nodes = useNodes(`cluster:${cluster}`)
  const q = `kind:pod cluster:${cluster} -status:Completed,Succeeded,Failed group:node`
  const pods = useAsk(['pods of nodes', cluster], (signal) => getJson<{ groups?: Groups }>(`${API}/query?limit=0&facets=&q=${encodeURIComponent(q)}`, signal), EVERY)
  const cells = heatOf(nodes.data?.found ?? [], pods.data?.groups?.values ?? [])
  if (cells.length === 0 || !pods.data) return null
  return (
    <ul className="heat" aria-label={t.podsOfNodes}>
      {cells.map(({ node, pods, most, percent, usage }) => {
        const said = t.podsOfNode(node, number(pods), number(most))
        return (
          <li key={node}>
            <Link className={usage} href={objectAddress({ cluster, apiVersion: 'v1', resource: 'nodes', name: node })} aria-label={`${said} (${percent} %)`} title={said}>
              {percent}
            </Link>
          </li>
        )
      })}
    </ul>
  )
}
