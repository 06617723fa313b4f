import { Link, useSearch as useParameters } from 'wouter'
import { clusterAddress, readAddress } from '../../api/address'
import { conditionOf, type Binding } from '../../api/karmada'
import { countObjects, queryObjects } from '../../api/kube'
import { templateAddress } from '../../api/propagation'
import { QueryResult, usePolledQuery } from '../../parts/polledQuery'
import { ClusterName } from '../../parts/ClusterName'
import { QueryFilter } from '../../parts/QueryFilter'
import { Pill } from '../../parts/Pill'
import { Table } from '../../parts/Table'
import { useTextOf } from '../../text'
import { propagationText } from '../../text/propagation'
import { QueryNotice } from './QueryNotice'

const MAX_BINDINGS = 100
/** Query for bindings of both scopes. */
export const BINDINGS = 'kind:resourcebinding,clusterresourcebinding'

/** Page with all propagated objects and links to their explanations. */
export function Bindings() {
  const t = useTextOf(propagationText)
  const { q = '' } = readAddress(useParameters())
  return (
    <>
      <h1>{t.tabs.bindings}</h1>
      <QueryFilter label={t.filter} path="/steer/bindings" q={q} parameters={{}} placeholder="ns:shop policy:shop/web is:unscheduled" />
      <BindingTable q={q} emptyText={t.noneReadable} />
    </>
  )
}

export function useBindings(q: string, limit = MAX_BINDINGS) {
  const query = `${BINDINGS} ${q}`.trim()
  return usePolledQuery(['bindings', query, limit], async (signal) => {
    const [bindings, count] = await Promise.all([queryObjects<Binding>(`${query} sort:namespace,name`, limit, signal), countObjects(query, [], signal)])
    return { bindings, total: count.total, query }
  })
}

export function BindingTable({ q, emptyText }: { q: string; emptyText: string }) {
  const t = useTextOf(propagationText)
  return (
    <QueryResult query={useBindings(q)}>
      {({ bindings, total, query }) =>
        bindings.length === 0 ? (
          <p className="empty">{emptyText}</p>
        ) : (
          <>
            <QueryNotice shown={bindings.length} total={total} query={query} />
            <Table label={t.tabs.bindings} headers={t.bindingHeaders}>
              {bindings.map((binding) => (
                <BindingRow key={`${binding.metadata.namespace}/${binding.metadata.name}`} binding={binding} />
              ))}
            </Table>
          </>
        )
      }
    </QueryResult>
  )
}

function BindingRow({ binding: { spec, status, metadata } }: { binding: Binding }) {
  const t = useTextOf(propagationText)
  const scheduled = conditionOf(status?.conditions, 'Scheduled')
  const health = new Map((status?.aggregatedStatus ?? []).map((item) => [item.clusterName, item.health ?? '']))
  return (
    <tr data-binding={metadata.name}>
      <th scope="row">
        <TemplateLink template={spec.resource} />
      </th>
      <td>
        {(spec.clusters ?? []).length === 0 && t.notScheduled}
        {(spec.clusters ?? []).map(({ name, replicas }) => (
          <Link key={name} className="chip" href={clusterAddress(name)}>
            <ClusterName name={name} /> {replicas ? `× ${replicas}` : ''}
          </Link>
        ))}
      </td>
      <td>
        <Pill state={scheduled?.status === 'True' ? t.scheduled : (scheduled?.reason ?? t.notScheduled)} tone={scheduled?.status === 'True' ? 'good' : scheduled ? 'bad' : 'busy'} title={scheduled?.message} />
      </td>
      <td>
        {[...new Set(health.values())].filter(Boolean).map((word) => (
          <Pill key={word} state={word} />
        ))}
      </td>
    </tr>
  )
}

/** A template's name with a link to its explanation. */
export function TemplateLink({ template: { apiVersion, kind, namespace, name } }: { template: Binding['spec']['resource'] }) {
  return (
    <Link href={templateAddress('why', { apiVersion, kind, name, ...(namespace && { namespace }) })}>
      {kind} {namespace ? `${namespace}/` : ''}
      {name}
    </Link>
  )
}
