// Quotas page: usage of FederatedResourceQuotas in total and per cluster, bindings that exceed a quota, and events about quotas.
import { Link, useSearch as useParameters } from 'wouter'
import { readAddress } from '../../api/address'
import { conditionOf, type Quantities, type Quota } from '../../api/karmada'
import { queryObjects } from '../../api/kube'
import { policyAddress } from '../../api/propagation'
import { QueryResult, usePolledQuery } from '../../parts/polledQuery'
import { Bar } from '../../parts/Bar'
import { ClusterLink } from '../../parts/ClusterLink'
import { formatAgeSince } from '../../parts/format'
import { QueryFilter } from '../../parts/QueryFilter'
import { parseQuantity, formatQuantity } from '../../api/quantity'
import { Table } from '../../parts/Table'
import { useTextOf } from '../../text'
import { propagationText } from '../../text/propagation'
import { EventTable } from '../fleet/Events'
import { TemplateLink, useBindings } from './Bindings'
import { uncountedUsage, usedAmount } from './uncountedUsage'

const MAX_QUOTAS = 100

export function Quotas() {
  const t = useTextOf(propagationText)
  const { q = '' } = readAddress(useParameters())
  const query = `kind:federatedresourcequota ${q}`.trim()
  const quotas = usePolledQuery(['quotas', query], (signal) => queryObjects<Quota>(`${query} sort:namespace,name`, MAX_QUOTAS, signal))
  return (
    <>
      <h1>{t.tabs.quotas}</h1>
      <div className="acts">
        <QueryFilter label={t.filter} path="/steer/quotas" q={q} parameters={{}} placeholder="ns:shop" />
        <Link href="/plan?new=FederatedResourceQuota">{t.createNew}</Link>
      </div>
      <QueryResult query={quotas}>
        {(items) =>
          items.length === 0 ? (
            <p className="empty box">
              {t.noQuotas} <Link href="/plan?new=FederatedResourceQuota">{t.createFirst}</Link>
            </p>
          ) : (
            <div className="cards">
              {items.map((quota) => (
                <QuotaCard key={`${quota.metadata.namespace}/${quota.metadata.name}`} quota={quota} />
              ))}
            </div>
          )
        }
      </QueryResult>
      <h2>{t.rejectedBindings}</h2>
      <RejectedBindings q={q} />
      <h2>{t.quotaEvents}</h2>
      <EventTable q={`kind:event type:Warning "quota" ${q}`.trim()} live limit={30} />
    </>
  )
}

function QuotaCard({ quota }: { quota: Quota }) {
  const t = useTextOf(propagationText)
  const { metadata, spec, status } = quota
  const { namespace, name } = metadata
  const clusterUsages = status?.aggregatedStatus ?? []
  return (
    <section className="card" aria-label={name} data-quota={`${namespace}/${name}`}>
      <h3>
        <Link href={policyAddress({ kind: 'FederatedResourceQuota', name, ...(namespace && { namespace }) })}>
          {namespace}/{name}
        </Link>
      </h3>
      <p className="mid">{t.overall}</p>
      <Bars label={name} hard={spec.overall} status={{ hard: status?.overall, used: status?.overallUsed }} />
      {uncountedUsage(quota).map(({ resource, excess }) => (
        <p key={resource} className="notice">
          {t.uncounted(resource, formatQuantity(resource, excess))}
        </p>
      ))}
      {(spec.staticAssignments ?? []).length > 0 && <p className="mid">{t.assigned}</p>}
      {spec.staticAssignments?.map(({ clusterName, hard }) => (
        <div key={clusterName}>
          <ClusterLink name={clusterName} />
          <Bars label={`${name} ${clusterName}`} hard={hard} status={clusterUsages.find((usage) => usage.clusterName === clusterName) ?? {}} />
        </div>
      ))}
    </section>
  )
}

interface BarsProps {
  label: string
  hard?: Quantities | undefined
  /** Limits and usage in the status. */
  status: { hard?: Quantities | undefined; used?: Quantities | undefined }
}

function Bars({ label, hard = {}, status }: BarsProps) {
  const t = useTextOf(propagationText)
  return Object.entries(hard).map(([resource, limit]) => {
    const used = usedAmount(resource, status)
    const limitAmount = parseQuantity(limit)
    const text = t.quotaUse(used === undefined ? '-' : formatQuantity(resource, used), formatQuantity(resource, limitAmount))
    return (
      <p key={resource}>
        {resource}{' '}
        {used === undefined ? (
          <span className="mid">
            {text} · {t.notCounted}
          </span>
        ) : (
          <Bar label={`${label} ${resource}`} used={used} total={limitAmount} text={text} />
        )}
      </p>
    )
  })
}

function RejectedBindings({ q }: { q: string }) {
  const t = useTextOf(propagationText)
  return (
    <QueryResult query={useBindings(`reason:QuotaExceeded ${q}`)}>
      {({ bindings }) =>
        bindings.length === 0 ? (
          <p className="empty">{t.noRejectedBindings}</p>
        ) : (
          <Table label={t.rejectedBindings} headers={t.rejectedBindingHeaders}>
            {bindings.map(({ metadata, spec, status }) => {
              const scheduled = conditionOf(status?.conditions, 'Scheduled')
              return (
                <tr key={`${metadata.namespace}/${metadata.name}`} data-rejected={spec.resource.name}>
                  <th scope="row">
                    <TemplateLink template={spec.resource} />
                  </th>
                  <td>{formatAgeSince(scheduled?.lastTransitionTime)}</td>
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
