// FederatedResourceQuotas: usage in total and per cluster, and refusals.
import { Link, useSearch as useParameters } from 'wouter'
import { readAddress } from '../../api/address'
import { conditionOf, type Quantities, type Quota } from '../../api/karmada'
import { objectsOf } from '../../api/kube'
import { policyAddress } from '../../api/propagation'
import { QueryResult, usePolledQuery } from '../../parts/polledQuery'
import { Bar } from '../../parts/Bar'
import { ClusterName } from '../../parts/ClusterName'
import { since } from '../../parts/format'
import { QueryFilter } from '../../parts/QueryFilter'
import { quantity, readable } from '../../api/quantity'
import { Table } from '../../parts/Table'
import { useTextOf } from '../../text'
import { propagationText } from '../../text/propagation'
import { EventTable } from '../fleet/Events'
import { TemplateLink, useBindings } from './Bindings'
import { uncountedUsage } from './uncountedUsage'

const MOST = 100

export function Quotas() {
  const t = useTextOf(propagationText)
  const { q = '' } = readAddress(useParameters())
  const query = `kind:federatedresourcequota ${q}`.trim()
  const quotas = usePolledQuery(['quotas', query], (signal) => objectsOf<Quota>(`${query} sort:namespace,name`, MOST, signal))
  return (
    <>
      <h1>{t.tabs.quotas}</h1>
      <div className="acts">
        <QueryFilter label={t.filter} path="/steer/quotas" q={q} parameters={{}} placeholder="ns:shop" />
        <Link href="/plan?new=FederatedResourceQuota">{t.newOne}</Link>
      </div>
      <QueryResult of={quotas}>
        {(found) =>
          found.length === 0 ? (
            <p className="empty box">
              {t.noQuotas} <Link href="/plan?new=FederatedResourceQuota">{t.createFirst}</Link>
            </p>
          ) : (
            <div className="cards">
              {found.map((quota) => (
                <Card key={`${quota.metadata.namespace}/${quota.metadata.name}`} quota={quota} />
              ))}
            </div>
          )
        }
      </QueryResult>
      <h2>{t.refusals}</h2>
      <Refusals q={q} />
      <h2>{t.denials}</h2>
      <EventTable q={`kind:event type:Warning "quota" ${q}`.trim()} live most={30} />
    </>
  )
}

function Card({ quota }: { quota: Quota }) {
  const t = useTextOf(propagationText)
  const { metadata, spec, status } = quota
  const { namespace, name } = metadata
  const inClusters = status?.aggregatedStatus ?? []
  return (
    <section className="card" aria-label={name} data-quota={`${namespace}/${name}`}>
      <h3>
        <Link href={policyAddress({ kind: 'FederatedResourceQuota', name, ...(namespace && { namespace }) })}>
          {namespace}/{name}
        </Link>
      </h3>
      <p className="mid">{t.overall}</p>
      <Bars of={name} hard={spec.overall} used={status?.overallUsed} />
      {uncountedUsage(quota).map(({ resource, excess }) => (
        <p key={resource} className="notice">
          {t.uncounted(resource, readable(resource, excess))}
        </p>
      ))}
      {(spec.staticAssignments ?? []).length > 0 && <p className="mid">{t.assigned}</p>}
      {spec.staticAssignments?.map(({ clusterName, hard }) => (
        <div key={clusterName}>
          <ClusterName name={clusterName} />
          <Bars of={`${name} ${clusterName}`} hard={hard} used={inClusters.find((one) => one.clusterName === clusterName)?.used} />
        </div>
      ))}
    </section>
  )
}

function Bars({ of, hard = {}, used }: { of: string; hard?: Quantities | undefined; used: Quantities | undefined }) {
  const t = useTextOf(propagationText)
  return Object.entries(hard).map(([resource, limit]) => {
    const [taken, whole] = [quantity(used?.[resource]), quantity(limit)]
    return (
      <p key={resource}>
        {resource} {used?.[resource] === undefined && <span className="mid">{t.notCounted}</span>}
        <Bar label={`${of} ${resource}`} used={taken} whole={whole} text={t.quotaUse(readable(resource, taken), readable(resource, whole))} />
      </p>
    )
  })
}

function Refusals({ q }: { q: string }) {
  const t = useTextOf(propagationText)
  return (
    <QueryResult of={useBindings(`reason:QuotaExceeded ${q}`)}>
      {({ bindings }) =>
        bindings.length === 0 ? (
          <p className="empty">{t.noRefusals}</p>
        ) : (
          <Table label={t.refusals} heads={t.refusalHeads}>
            {bindings.map(({ metadata, spec, status }) => {
              const scheduled = conditionOf(status?.conditions, 'Scheduled')
              return (
                <tr key={`${metadata.namespace}/${metadata.name}`} data-refused={spec.resource.name}>
                  <th scope="row">
                    <TemplateLink of={spec.resource} />
                  </th>
                  <td>{since(scheduled?.lastTransitionTime)}</td>
                  <td>{scheduled?.message}</td>
                </tr>
              )
            })}
          </Table>
        )
      }
    </QueryResult>
  )
}
