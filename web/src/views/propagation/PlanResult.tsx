// The result of a plan: templates that would move, and the manifests of each cluster.
import { lazy, Suspense, useState } from 'react'
import type { ClusterPlan, PlanReport, TemplatePlan } from '../../api/propagation'
import { ClusterName } from '../../parts/ClusterName'
import { Differences } from '../../parts/Differences'
import { withoutServerFields } from '../../parts/manifest'
import { Modal } from '../../parts/Modal'
import { Table } from '../../parts/Table'
import { print } from '../../parts/yaml'
import { useTextOf } from '../../text'
import { queryText } from '../../text/query'
import { propagationText } from '../../text/propagation'
import { TemplateLink } from './Bindings'
import { SchedulingReport, WaitingFor } from './Why'

const Editor = lazy(() => import('../../parts/Editor').then((part) => ({ default: part.Editor })))

export function PlanResult({ report }: { report: PlanReport }) {
  const t = useTextOf(propagationText)
  const moved = report.templates.filter(({ change, message, waiting }) => change !== 'Unchanged' || message || waiting.length > 0)
  return (
    <section className="plans" aria-label={t.planned}>
      <h2>{t.planned}</h2>
      {report.notices.map((notice) => (
        <p key={notice} className="notice">
          {notice}
        </p>
      ))}
      <details>
        <summary>{t.objectsIn}</summary>
        {report.objects.map((object) => (
          <div key={`${object.kind}/${object.namespace}/${object.name}`}>
            <p>
              {object.kind} {object.namespace ? `${object.namespace}/` : ''}
              {object.name}: <span className={object.change}>{t.changes[object.change]}</span>
            </p>
            <Differences label={`${object.kind} ${object.name}`} of={object.differences} />
          </div>
        ))}
      </details>
      <p role="status">{moved.length === 0 ? t.nothingMoves : t.moves(moved.length)}</p>
      {report.more > 0 && <p className="notice">{t.moreTemplates(report.more)}</p>}
      {report.withheld > 0 && <p className="notice">{t.withheld(report.withheld)}</p>}
      {report.templates.map((template) => (
        <OfTemplate key={`${template.template.kind}/${template.template.namespace}/${template.template.name}`} plan={template} />
      ))}
    </section>
  )
}

const policyText = (policy: TemplatePlan['policy'], none: string) => (policy ? `${policy.kind} ${policy.namespace ? `${policy.namespace}/` : ''}${policy.name}` : none)

function OfTemplate({ plan }: { plan: TemplatePlan }) {
  const t = useTextOf(propagationText)
  const [shown, setShown] = useState<ClusterPlan>()
  const [before, after] = [policyText(plan.policyBefore, t.noPolicy), policyText(plan.policy, t.noPolicy)]
  return (
    <article data-template={plan.template.name}>
      <h3>
        <TemplateLink of={plan.template} /> <span className={plan.change}>{t.changes[plan.change]}</span>
      </h3>
      {plan.message && <p className="bad">{plan.message}</p>}
      {before !== after && (
        <p>
          {t.policyChange}: {before} → {after}
        </p>
      )}
      {plan.dependencies.length > 0 && (
        <p>
          {t.along}{' '}
          {plan.dependencies.map((one) => (
            <span key={`${one.kind}/${one.name}`} className="chip">
              {one.kind} {one.name}
            </span>
          ))}
        </p>
      )}
      {plan.clusters.length > 0 && (
        <Table label={`${plan.template.kind} ${plan.template.name}`} heads={t.planHeads}>
          {plan.clusters.map((cluster) => (
            <ClusterRow key={cluster.name} plan={cluster} onShow={() => setShown(cluster)} />
          ))}
        </Table>
      )}
      {plan.waiting.length > 0 && (
        <>
          <h4>{t.waiting}</h4>
          <WaitingFor waiting={plan.waiting} />
        </>
      )}
      {plan.scheduling && (
        <details>
          <summary>{t.scheduling}</summary>
          <SchedulingReport scheduling={plan.scheduling} />
        </details>
      )}
      {shown && <Manifests plan={shown} onClose={() => setShown(undefined)} />}
    </article>
  )
}

function ClusterRow({ plan, onShow }: { plan: ClusterPlan; onShow: () => void }) {
  const t = useTextOf(propagationText)
  const ask = useTextOf(queryText)
  const isThere = plan.change !== 'Removed'
  const wasThere = plan.change !== 'Added'
  return (
    <tr data-cluster={plan.name} data-change={plan.change}>
      <th scope="row">
        <ClusterName name={plan.name} />
      </th>
      <td className={plan.change}>{t.changes[plan.change]}</td>
      <td>{wasThere ? (plan.replicasBefore ?? t.yes) : t.no}</td>
      <td>{isThere ? (plan.replicas ?? t.yes) : t.no}</td>
      <td>
        {plan.differences.length > 0 && (
          <details>
            <summary>{plan.differences.length}</summary>
            <Differences label={t.manifestOf(plan.name)} of={plan.differences} />
          </details>
        )}
        {(plan.manifest ?? plan.manifestBefore) && (
          <button type="button" onClick={onShow} title={ask.whole}>
            {t.manifest}
          </button>
        )}
      </td>
      <td>{plan.message}</td>
    </tr>
  )
}

function Manifests({ plan, onClose }: { plan: ClusterPlan; onClose: () => void }) {
  const t = useTextOf(propagationText)
  const text = (manifest: ClusterPlan['manifest']) => (manifest ? print(withoutServerFields(manifest, { version: false })) : '')
  return (
    <Modal label={t.manifestOf(plan.name)} className="wide" onClose={onClose}>
      <h2>
        {t.manifestOf(plan.name)} · <span className={plan.change}>{t.changes[plan.change]}</span>
      </h2>
      <Suspense fallback={null}>
        <Editor label={t.manifestOf(plan.name)} original={plan.manifestBefore && plan.manifest ? text(plan.manifestBefore) : undefined} value={text(plan.manifest ?? plan.manifestBefore)} />
      </Suspense>
      <p>
        <button type="button" onClick={onClose}>
          {t.close}
        </button>
      </p>
    </Modal>
  )
}
