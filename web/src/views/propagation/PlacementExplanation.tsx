// Placement tab: the explanation of a template's placement (docs/EXPLAIN.md), polled.
import { Link } from 'wouter'
import { objectAddress } from '../../api/address'
import { CONTROL_PLANE } from '../../api/client'
import { readExplanation, templateName, policyAddress, templateAddress, type ClusterReport, type Explanation, type PolicyReport, type Scheduling, type Target, type Template, type Blocker } from '../../api/propagation'
import { QueryResult, usePolledQuery } from '../../parts/polledQuery'
import { ClusterLink } from '../../parts/ClusterLink'
import { Differences } from '../../parts/Differences'
import { formatNumber, formatAgeSince } from '../../parts/format'
import { Pill } from '../../parts/Pill'
import { Table } from '../../parts/Table'
import { useTextOf } from '../../text'
import { propagationText } from '../../text/propagation'
import { filterOutcomeOf } from './filterOutcome'

export function useExplanation(template: Template) {
  return usePolledQuery(['explain', template], (signal) => readExplanation(template, signal), 3_000)
}

export function PlacementExplanation({ template }: { template: Template }) {
  const t = useTextOf(propagationText)
  return (
    <QueryResult query={useExplanation(template)}>
      {(explanation) => (
        <>
          <Summary explanation={explanation} />
          <h2>{t.waiting}</h2>
          <Blockers waiting={explanation.waiting} />
          <h2>{t.targets}</h2>
          <Targets targets={explanation.targets} />
          <h2>{t.policies}</h2>
          <PolicyReports policies={explanation.policies} />
          {explanation.scheduling && (
            <>
              <h2>{t.scheduling}</h2>
              <SchedulingReport scheduling={explanation.scheduling} />
            </>
          )}
          <h2>{t.overrides}</h2>
          <Overrides targets={explanation.targets} />
          <p className="notice">
            {t.inTerminal} <code>{command(template)}</code>
          </p>
        </>
      )}
    </QueryResult>
  )
}

function command(template: Template): string {
  return `crowsnest explain ${templateName(template).replace(':', '/')}${template.namespace ? ` -n ${template.namespace}` : ''}`
}

function Summary({ explanation: { policy, binding } }: { explanation: Explanation }) {
  const t = useTextOf(propagationText)
  return (
    <dl className="facts">
      <dt>{t.follows}</dt>
      <dd>
        {policy ? (
          <Link href={policyAddress(policy)}>
            {policy.kind} {policy.namespace ? `${policy.namespace}/` : ''}
            {policy.name}
          </Link>
        ) : (
          t.noPolicy
        )}
      </dd>
      {binding && (
        <>
          <dt>{t.boundBy}</dt>
          <dd>
            <Link
              href={objectAddress({
                cluster: CONTROL_PLANE,
                apiVersion: binding.apiVersion,
                resource: `${binding.kind.toLowerCase()}s`,
                namespace: binding.namespace,
                name: binding.name,
              })}
            >
              {binding.kind} {binding.name}
            </Link>
            {binding.replicas > 0 && `, ${t.replicas(binding.replicas)}`}
            {binding.scheduledAt && `, ${t.scheduledAt(formatAgeSince(binding.scheduledAt))}`}
            {binding.message && `: ${binding.message}`}
          </dd>
          {(binding.requiredBy ?? []).length > 0 && (
            <>
              <dt>{t.requiredBy}</dt>
              <dd>
                {binding.requiredBy?.map((source) => (
                  <Link key={`${source.kind}/${source.name}`} className="chip" href={templateAddress('why', source)}>
                    {source.kind} {source.name}
                  </Link>
                ))}
              </dd>
            </>
          )}
        </>
      )}
    </dl>
  )
}

export function Blockers({ waiting }: { waiting: Blocker[] }) {
  const t = useTextOf(propagationText)
  if (waiting.length === 0) return <p className="empty">{t.noWaiting}</p>
  return (
    <Table label={t.waiting} headers={t.waitingHeaders}>
      {waiting.map(({ cause, cluster, message }, nth) => (
        <tr key={nth} data-cause={cause}>
          <th scope="row">{cause}</th>
          <td>{cluster && <ClusterLink name={cluster} />}</td>
          <td>{message}</td>
        </tr>
      ))}
    </Table>
  )
}

function PolicyReports({ policies }: { policies: PolicyReport[] }) {
  const t = useTextOf(propagationText)
  if (policies.length === 0) return <p className="empty">{t.noneSelects}</p>
  return (
    <Table label={t.policies} headers={t.reportHeaders}>
      {policies.map((policy) => {
        const isChosen = policy.outcome === 'Chosen' || policy.outcome === 'Claimed'
        return (
          <tr key={`${policy.kind}/${policy.namespace}/${policy.name}`} data-outcome={policy.outcome}>
            <th scope="row">
              <Link href={policyAddress(policy)}>
                {policy.kind} {policy.namespace ? `${policy.namespace}/` : ''}
                {policy.name}
              </Link>
            </th>
            <td>{policy.priority}</td>
            <td>{policy.selectsBy}</td>
            <td>
              <Pill state={isChosen ? t.isChosen : t.isNotChosen} tone={isChosen ? 'good' : 'idle'} />
            </td>
            <td>{policy.message}</td>
          </tr>
        )
      })}
    </Table>
  )
}

/** The scheduler's result for each cluster, per evaluated affinity term. */
export function SchedulingReport({ scheduling: { decision, trigger, reason, message, terms } }: { scheduling: Scheduling }) {
  const t = useTextOf(propagationText)
  return (
    <>
      <p>
        {t.decisions[decision] ?? decision} {trigger && (t.triggers[trigger] ?? trigger)} {reason && <b className="bad">{reason}</b>} {message}
      </p>
      {terms.map((term, nth) => (
        <div key={nth}>
          {term.affinity && <h3>{t.term(term.affinity)}</h3>}
          {term.message && <p className="bad">{term.message}</p>}
          <Table label={term.affinity ? t.term(term.affinity) : t.scheduling} headers={t.clusterHeaders}>
            {term.clusters.map((cluster) => (
              <tr key={cluster.name} data-cluster={cluster.name}>
                <th scope="row">
                  <ClusterLink name={cluster.name} />
                </th>
                <td>
                  <FilterResult report={cluster} />
                </td>
                <td className="number">{cluster.rejected ? '' : cluster.score}</td>
                <td className="number">{cluster.estimate && formatNumber(cluster.estimate.replicas)}</td>
                <td>{cluster.estimate?.boundBy && (t.bounds[cluster.estimate.boundBy] ?? cluster.estimate.boundBy)}</td>
                <td>{cluster.rejected ? '' : cluster.selected ? t.yes : t.no}</td>
                <td>{cluster.replicas}</td>
              </tr>
            ))}
          </Table>
        </div>
      ))}
    </>
  )
}

/** Result of the filters for a cluster: it fits, is rejected, or fits until a taint evicts the workload. */
function FilterResult({ report }: { report: ClusterReport }) {
  const t = useTextOf(propagationText)
  const { filter, reason, tone } = filterOutcomeOf(report)
  return (
    <>
      <Pill state={filter ?? (tone === 'warn' ? t.evicted : t.fits)} tone={tone} />
      {reason !== undefined && <div className="mid">{report.rejected ? reason : t.untolerated(reason)}</div>}
    </>
  )
}

function Targets({ targets }: { targets: Target[] }) {
  const t = useTextOf(propagationText)
  if (targets.length === 0) return <p className="empty">{t.noTargets}</p>
  return (
    <Table label={t.targets} headers={t.targetHeaders}>
      {targets.map(({ cluster, placed, replicas, applied, health, work }) => (
        <tr key={`${cluster}/${placed}`} data-target={cluster}>
          <th scope="row">
            <ClusterLink name={cluster} />
          </th>
          <td>{t.placed[placed]}</td>
          <td>{replicas}</td>
          <td>
            <Pill state={applied ? t.isApplied : t.isNotApplied} tone={applied ? 'good' : 'bad'} />
          </td>
          <td>
            <Pill state={health} />
          </td>
          <td>
            {work && (
              <Link href={objectAddress({ cluster: CONTROL_PLANE, apiVersion: work.apiVersion, resource: 'works', namespace: work.namespace, name: work.name })}>{work.name}</Link>
            )}
          </td>
        </tr>
      ))}
    </Table>
  )
}

function Overrides({ targets }: { targets: Target[] }) {
  const t = useTextOf(propagationText)
  const all = targets.flatMap(({ cluster, overrides }) => overrides.map((override) => ({ cluster, override })))
  if (all.length === 0) return <p className="empty">{t.noOverrides}</p>
  return all.map(({ cluster, override }, nth) => {
    const name = `${override.kind} ${override.namespace ? `${override.namespace}/` : ''}${override.name}`
    return (
      <section key={nth} data-override={cluster}>
        <h3>
          <Link href={policyAddress(override)}>{name}</Link> · <ClusterLink name={cluster} />
        </h3>
        {override.differences.length === 0 ? <p className="empty">{t.changesNothing}</p> : <Differences label={t.overridesIn(name, cluster)} differences={override.differences} />}
      </section>
    )
  })
}

