import { Link, useLocation, useSearch as useParameters } from 'wouter'
import { clusterAddress, objectAddress, readAddress, writeAddress } from '../../api/address'
import { getJson } from '../../api/client'
import type { Cluster } from '../../api/karmada'
import { MEASURED_RESOURCES, usageByNode } from '../../api/nodeMetrics'
import { formatQuantity } from '../../api/quantity'
import type { Groups } from '../../api/types'
import { API } from '../../api/useSearch'
import { usePolledQuery } from '../../parts/polledQuery'
import { formatNumber } from '../../parts/format'
import { useTextOf } from '../../text'
import { fleetText } from '../../text/fleet'
import { nodeUsages } from './nodeUsages'
import { useNodes } from './Nodes'
import { useNodeMetrics } from './useNodeMetrics'

/** Polling interval in milliseconds. */
const REFRESH_INTERVAL_MS = 15_000

interface NodeHeatmapProps {
  name: string
  /** Absent until it is read. */
  cluster: Cluster | undefined
}

/** Heatmap of a cluster's nodes by the parameter `heat` of the address: pods that run on each, or used CPU or memory, in percent of the allocatable amount. */
export function NodeHeatmap({ name, cluster }: NodeHeatmapProps) {
  const t = useTextOf(fleetText)
  const [, navigate] = useLocation()
  const { heat } = readAddress(useParameters())
  const metrics = useNodeMetrics(cluster)
  const nodes = useNodes(`cluster:${name}`)
  const q = `kind:pod cluster:${name} -status:Completed,Succeeded,Failed group:node`
  const pods = usePolledQuery(['pods of nodes', name], (signal) => getJson<{ groups?: Groups }>(`${API}/query?limit=0&facets=&q=${encodeURIComponent(q)}`, signal), REFRESH_INTERVAL_MS)
  const measured = metrics && MEASURED_RESOURCES.find((resource) => resource === heat)
  const by = measured ?? 'pods'
  const used = metrics && measured ? usageByNode(metrics, measured) : new Map((pods.data?.groups?.values ?? []).map(({ value, count }) => [value, count]))
  // A new node has not been measured yet.
  const shownNodes = (nodes.data?.nodes ?? []).filter(({ metadata }) => by === 'pods' || used.has(metadata.name))
  const cells = nodeUsages(shownNodes, by, used)
  if (cells.length === 0 || (by === 'pods' && !pods.data)) return null
  const format = (amount: number) => (by === 'pods' ? formatNumber(amount) : formatQuantity(by, amount))
  return (
    <>
      {metrics && metrics.length > 0 && (
        <p className="acts">
          <label>
            {t.heatBy}{' '}
            <select value={by} onChange={(event) => navigate(`${clusterAddress(name)}${writeAddress({ heat: event.target.value === 'pods' ? undefined : event.target.value })}`, { replace: true })}>
              {(['pods', ...MEASURED_RESOURCES] as const).map((resource) => (
                <option key={resource} value={resource}>
                  {t.heatNames[resource]}
                </option>
              ))}
            </select>
          </label>
        </p>
      )}
      <ul className="heat" aria-label={t.heatOfNodes(t.heatNames[by])}>
        {cells.map(({ node, used, allocatable, percent, level }) => {
          const label = t.heatOfNode(node, format(used), format(allocatable), by)
          return (
            <li key={node}>
              <Link className={level} href={objectAddress({ cluster: name, apiVersion: 'v1', resource: 'nodes', name: node })} aria-label={`${label} (${percent} %)`} title={label}>
                {percent}
              </Link>
            </li>
          )
        })}
      </ul>
    </>
  )
}
