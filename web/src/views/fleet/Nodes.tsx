import { Link, useSearch as useParameters } from 'wouter'
import { clusterAddress, objectAddress, readAddress, searchAddress } from '../../api/address'
import type { Node } from '../../api/karmada'
import { clusterOf, countObjects, objectsOf } from '../../api/kube'
import { QueryResult, usePolledQuery } from '../../parts/polledQuery'
import { ClusterName } from '../../parts/ClusterName'
import { since } from '../../parts/format'
import { QueryFilter } from '../../parts/QueryFilter'
import { Pill } from '../../parts/Pill'
import { quantity, readable } from '../../api/quantity'
import { toneOfReadiness } from '../../parts/status'
import { Table } from '../../parts/Table'
import { useTextOf } from '../../text'
import { fleetText } from '../../text/fleet'

/** Whole objects are large: limit of nodes on a page, which the page reports. */
const MOST = 200

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

const queryOf = (q: string) => `kind:node ${q}`.trim()

/** The first nodes that match a query, and their number. */
export function useNodes(q: string) {
  const whole = queryOf(q)
  return usePolledQuery(['nodes', q], async (signal) => {
    const [found, count] = await Promise.all([objectsOf<Node>(`${whole} sort:cluster,name`, MOST, signal), countObjects(whole, [], signal)])
    return { found, total: count.total }
  })
}

export function NodeTable({ q }: { q: string }) {
  const t = useTextOf(fleetText)
  const whole = queryOf(q)
  const nodes = useNodes(q)
  return (
    <QueryResult of={nodes}>
      {({ found, total }) => (
        <>
          <p className="notice">
            {found.length < total ? t.firstNodes(found.length, total) : t.nodeCount(total)} · <Link href={searchAddress({ q: whole })}>{t.asQuery}</Link>
          </p>
          <Table label={t.nodes} heads={t.nodeHeads}>
            {found.map((node) => (
              <NodeRow key={`${clusterOf(node)}/${node.metadata.name}`} node={node} />
            ))}
          </Table>
        </>
      )}
    </QueryResult>
  )
}

function NodeRow({ node }: { node: Node }) {
  const t = useTextOf(fleetText)
  const cluster = clusterOf(node)
  const { status, spec, metadata } = node
  const ready = status?.conditions?.find(({ type }) => type === 'Ready')?.status ?? 'Unknown'
  // Abnormal conditions only: most node conditions are normal when they are False.
  const pressing = (status?.conditions ?? []).filter(({ type, status }) => type !== 'Ready' && status === 'True')
  const has = (resource: string) => readable(resource, quantity(status?.allocatable?.[resource]))
  return (
    <tr data-node={metadata.name}>
      <td>
        <Link href={clusterAddress(cluster)}>
          <ClusterName name={cluster} />
        </Link>
      </td>
      <th scope="row">
        <Link href={objectAddress({ cluster, apiVersion: 'v1', resource: 'nodes', name: metadata.name })}>{metadata.name}</Link>
      </th>
      <td>
        <Pill state={ready} tone={toneOfReadiness(ready)} text={t.readyWords[ready] ?? ready} />{' '}
        {spec?.unschedulable && <span className="chip">{t.unschedulable}</span>}
        {pressing.map(({ type, message }) => (
          <span key={type} className="chip" title={message}>
            {type}
          </span>
        ))}
      </td>
      <td>{status?.nodeInfo?.kubeletVersion}</td>
      <td className="number">{has('cpu')}</td>
      <td className="number">{has('memory')}</td>
      <td className="number">
        <Link href={searchAddress({ q: `kind:pod cluster:${cluster} node:${metadata.name}` })}>{has('pods')}</Link>
      </td>
      <td>
        {(spec?.taints ?? []).map(({ key, effect }) => (
          <span key={`${key}:${effect}`} className="chip">
            {key}:{effect}
          </span>
        ))}
      </td>
      <td>{since(metadata.creationTimestamp)}</td>
    </tr>
  )
}
