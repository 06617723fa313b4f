import { Link, useLocation, useSearch as useParameters } from 'wouter'
import { clusterAddress, objectAddress, readAddress, searchAddress, writeAddress } from '../../api/address'
import type { Cluster } from '../../api/karmada'
import type { NodeRequests } from '../../api/nodeRequests'
import { formatQuantity } from '../../api/quantity'
import { formatNumber } from '../../parts/format'
import { useTextOf } from '../../text'
import { fleetText } from '../../text/fleet'
import { nodeMeasures } from './nodeMeasures'
import { nodeUsages } from './nodeUsages'
import { nodeQuery, useNodes } from './Nodes'
import { useNodeMetrics } from './useNodeMetrics'

interface NodeHeatmapProps {
  name: string
  /** Absent until it is read. */
  cluster: Cluster | undefined
  /** Absent until they are read, and for users who may not list all pods. */
  requests: NodeRequests | undefined
}

/** Heatmap of a cluster's nodes by the parameter `heat` of the address: requested or used CPU or memory, or pods, in percent of the allocatable amount. */
export function NodeHeatmap({ name, cluster, requests }: NodeHeatmapProps) {
  const t = useTextOf(fleetText)
  const [, navigate] = useLocation()
  const { heat } = readAddress(useParameters())
  const metrics = useNodeMetrics(cluster)
  const nodesOfCluster = `cluster:${name}`
  const { data } = useNodes(nodesOfCluster)
  const nodes = data?.nodes ?? []
  const hiddenCount = (data?.total ?? 0) - nodes.length
  const measures = nodeMeasures(nodes.map(({ metadata }) => metadata.name), requests, metrics)
  const measure = measures.find((candidate) => candidate.name === heat) ?? measures[0]
  if (!measure || nodes.length === 0) return null
  const { resource, amounts } = measure
  const cells = nodeUsages(nodes, resource, amounts)
  const format = (amount: number) => (resource === 'pods' ? formatNumber(amount) : formatQuantity(resource, amount))
  return (
    <>
      <p className="acts">
        <label>
          {t.heatBy}{' '}
          <select value={measure.name} onChange={(event) => navigate(`${clusterAddress(name)}${writeAddress({ heat: event.target.value })}`, { replace: true })}>
            {measures.map(({ name }) => (
              <option key={name} value={name}>
                {t.heatNames[name]}
              </option>
            ))}
          </select>
        </label>
      </p>
      <ul className="heat" aria-label={t.heatOfNodes(t.heatNames[measure.name])}>
        {cells.map(({ node, usage }) => {
          const label = usage ? t.heatOfNode(node, format(usage.used), format(usage.allocatable), resource) : t.unknownOfNode(t.heatNames[measure.name], node)
          return (
            <li key={node}>
              <Link className={usage ? usage.level : 'unknown'} href={objectAddress({ cluster: name, apiVersion: 'v1', resource: 'nodes', name: node })} aria-label={usage ? `${label} (${usage.percent} %)` : label} title={label}>
                {usage ? usage.percent : '-'}
              </Link>
            </li>
          )
        })}
      </ul>
      {hiddenCount > 0 && (
        <p className="notice">
          {t.moreNodes(hiddenCount)} <Link href={searchAddress({ q: nodeQuery(nodesOfCluster) })}>{t.asQuery}</Link>
        </p>
      )}
    </>
  )
}
