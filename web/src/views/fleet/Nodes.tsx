import { Link, useSearch as useParameters } from 'wouter'
import { objectAddress, readAddress, searchAddress } from '../../api/address'
import type { Node } from '../../api/karmada'
import { clusterOf, countObjects, queryObjects } from '../../api/kube'
import { amountOfNode, REQUESTED_RESOURCES, type NodeRequests, type RequestedResource } from '../../api/nodeRequests'
import { Bar } from '../../parts/Bar'
import { SkippedClusters } from '../../parts/SkippedClusters'
import { QueryResult, usePolledQuery } from '../../parts/polledQuery'
import { ClusterLink } from '../../parts/ClusterLink'
import { formatAgeSince } from '../../parts/format'
import { QueryFilter } from '../../parts/QueryFilter'
import { Pill } from '../../parts/Pill'
import { parseQuantity, formatQuantity } from '../../api/quantity'
import { toneOfReadiness } from '../../parts/status'
import { Table } from '../../parts/Table'
import { Unknown } from '../../parts/Unknown'
import { useTextOf } from '../../text'
import { fleetText } from '../../text/fleet'

/** Maximum number of nodes on the page: manifests of nodes are large. */
const MAX_NODES = 200

/** Nodes of all clusters, filtered by a query. */
export function Nodes() {
  const t = useTextOf(fleetText)
  const { q = '' } = readAddress(useParameters())
  return (
    <>
      <h1>{t.nodes}</h1>
      <QueryFilter label={t.nodeFilter} path="/fleet/nodes" q={q} parameters={{}} placeholder="cluster:member1 -status:Ready" />
      <NodeTable q={q} />
    </>
  )
}

/** Query for the nodes that match another query. */
export const nodeQuery = (q: string) => `kind:node ${q}`.trim()

/** The first nodes that match a query, and the total number. */
export function useNodes(q: string) {
  const query = nodeQuery(q)
  return usePolledQuery(['nodes', q], async (signal) => {
    const [nodes, count] = await Promise.all([queryObjects<Node>(`${query} sort:cluster,name`, MAX_NODES, signal), countObjects(query, [], signal)])
    return { nodes, total: count.total }
  })
}

interface NodeTableProps {
  q: string
  /** Resource requests of the pods by node; undefined if they are not shown. */
  requests?: NodeRequests | undefined
}

export function NodeTable({ q, requests }: NodeTableProps) {
  const t = useTextOf(fleetText)
  const query = nodeQuery(q)
  const nodes = useNodes(q)
  const names = t.nodeHeaders
  const requestedHeaders = requests ? REQUESTED_RESOURCES.map((resource) => t.requestedHeaders[resource]) : []
  const headers = [names.cluster, names.node, names.status, names.version, names.cpu, names.memory, ...requestedHeaders, names.pods, names.taints, names.age]
  return (
    <QueryResult query={nodes}>
      {({ nodes, total }) => (
        <>
          <p className="notice">
            {nodes.length < total ? t.firstNodes(nodes.length, total) : t.nodeCount(total)} · <Link href={searchAddress({ q: query })}>{t.asQuery}</Link>
          </p>
          {requests && <SkippedClusters skipped={requests.skipped} label={t.requestsIncomplete} isIncomplete={requests.isLowerBound} />}
          <Table label={t.nodes} headers={headers}>
            {nodes.map((node) => (
              <NodeRow key={`${clusterOf(node)}/${node.metadata.name}`} node={node} requests={requests} />
            ))}
          </Table>
        </>
      )}
    </QueryResult>
  )
}

function NodeRow({ node, requests }: { node: Node; requests: NodeRequests | undefined }) {
  const t = useTextOf(fleetText)
  const cluster = clusterOf(node)
  const { status, spec, metadata } = node
  const ready = status?.conditions?.find(({ type }) => type === 'Ready')?.status ?? 'Unknown'
  // Node conditions other than Ready are normal when they are False.
  const abnormalConditions = (status?.conditions ?? []).filter(({ type, status }) => type !== 'Ready' && status === 'True')
  const allocatable = (resource: string, label: string) => {
    const amount = status?.allocatable?.[resource]
    return amount === undefined ? <Unknown label={t.unknownOfNode(label, metadata.name)} /> : formatQuantity(resource, parseQuantity(amount))
  }
  return (
    <tr data-node={metadata.name}>
      <td>
        <ClusterLink name={cluster} />
      </td>
      <th scope="row">
        <Link href={objectAddress({ cluster, apiVersion: 'v1', resource: 'nodes', name: metadata.name })}>{metadata.name}</Link>
      </th>
      <td>
        <Pill state={ready} tone={toneOfReadiness(ready)} text={t.readyLabels[ready] ?? ready} />{' '}
        {spec?.unschedulable && <span className="chip">{t.unschedulable}</span>}
        {abnormalConditions.map(({ type, message }) => (
          <span key={type} className="chip" title={message}>
            {type}
          </span>
        ))}
      </td>
      <td>{status?.nodeInfo?.kubeletVersion}</td>
      <td className="number">{allocatable('cpu', t.nodeHeaders.cpu)}</td>
      <td className="number">{allocatable('memory', t.nodeHeaders.memory)}</td>
      {requests &&
        REQUESTED_RESOURCES.map((resource) => (
          <td key={resource}>
            <RequestedBar node={node} resource={resource} requests={requests} />
          </td>
        ))}
      <td className="number">
        <Link href={searchAddress({ q: `kind:pod cluster:${cluster} node:${metadata.name}` })}>{allocatable('pods', t.nodeHeaders.pods)}</Link>
      </td>
      <td>
        {(spec?.taints ?? []).map(({ key, effect }) => (
          <span key={`${key}:${effect}`} className="chip">
            {key}:{effect}
          </span>
        ))}
      </td>
      <td>{formatAgeSince(metadata.creationTimestamp)}</td>
    </tr>
  )
}

/** Requested amount of a node, relative to its allocatable amount; a dash if one of them is unknown. */
function RequestedBar({ node: { metadata, status }, resource, requests }: { node: Node; resource: RequestedResource; requests: NodeRequests }) {
  const t = useTextOf(fleetText)
  const requested = amountOfNode(requests, resource, metadata.name)
  const allocatable = status?.allocatable?.[resource]
  if (requested === undefined || allocatable === undefined) return <Unknown label={t.unknownOfNode(t.requestedHeaders[resource], metadata.name)} />
  const total = parseQuantity(allocatable)
  const text = t.usedOf(formatQuantity(resource, requested), formatQuantity(resource, total))
  return <Bar label={t.requestedOfNode(resource, metadata.name)} used={requested} total={total} text={text} />
}
