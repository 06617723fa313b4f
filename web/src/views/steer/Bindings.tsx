import { Link, useSearch as useParameters } from 'wouter'
import { clusterAddress, readAddress, searchAddress } from '../../api/address'
import { conditionOf, type Binding } from '../../api/karmada'
import { counted, objectsOf } from '../../api/kube'
import { templateAddress } from '../../api/propagation'
import { Answer, useAsk } from '../../parts/Asking'
import { ClusterName } from '../../parts/ClusterName'
import { Narrow } from '../../parts/Narrow'
import { Pill } from '../../parts/Pill'
import { Table } from '../../parts/Table'
import { useTextOf } from '../../text'
import { steerText } from '../../text/steer'

const MOST = 100
/** Bindings of both scopes. */
export const BINDINGS = 'kind:resourcebinding,clusterresourcebinding'

/** All propagated objects, with links to their explanations. */
export function Bindings() {
  const t = useTextOf(steerText)
  const { q = '' } = readAddress(useParameters())
  return (
    <>
      <h1>{t.tabs.bindings}</h1>
      <Narrow label={t.filter} path="/steer/bindings" q={q} of={{}} placeholder="ns:shop policy:shop/web is:unscheduled" />
      <BindingTable q={q} none={t.holdsNone} />
    </>
  )
}

export function useBindings(q: string, most = MOST) {
  const query = `${BINDINGS} ${q}`.trim()
  return useAsk(['bindings', query, most], async (signal) => {
    const [found, count] = await Promise.all([objectsOf<Binding>(`${query} sort:namespace,name`, most, signal), counted(query, [], signal)])
    return { found, total: count.total, query }
  })
}

export function BindingTable({ q, none }: { q: string; none: string }) {
  const t = useTextOf(steerText)
  return (
    <Answer of={useBindings(q)}>
      {({ found, total, query }) =>
        found.length === 0 ? (
          <p className="empty">{none}</p>
        ) : (
          <>
            <p className="notice">
              {found.length < total && `${t.firstOf(found.length, total)} `}
              <Link href={searchAddress({ q: query })}>{t.asQuery}</Link>
            </p>
            <Table label={t.tabs.bindings} heads={t.bindingHeads}>
              {found.map((binding) => (
                <BindingRow key={`${binding.metadata.namespace}/${binding.metadata.name}`} binding={binding} />
              ))}
            </Table>
          </>
        )
      }
    </Answer>
  )
}

function BindingRow({ binding: { spec, status, metadata } }: { binding: Binding }) {
  const t = useTextOf(steerText)
  const scheduled = conditionOf(status?.conditions, 'Scheduled')
  const health = new Map((status?.aggregatedStatus ?? []).map((one) => [one.clusterName, one.health ?? '']))
  return (
    <tr data-binding={metadata.name}>
      <th scope="row">
        <TemplateLink of={spec.resource} />
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
export function TemplateLink({ of: { apiVersion, kind, namespace, name } }: { of: Binding['spec']['resource'] }) {
  return (
    <Link href={templateAddress('why', { apiVersion, kind, name, ...(namespace && { namespace }) })}>
      {kind} {namespace ? `${namespace}/` : ''}
      {name}
    </Link>
  )
}
