// Result of a plan: affected templates, and their manifests in each cluster.
import { Suspense, useState } from 'react'
import { Link } from 'wouter'
import { isKind } from '../../api/client'
import { findPolicyKind, type ObjectReference } from '../../api/karmada'
import { policyAddress, type ClusterPlan, type PlanReport, type PolicyName, type TemplatePlan } from '../../api/propagation'
import { lazyPart } from '../../parts/LazyPart'
import { ClusterLink } from '../../parts/ClusterLink'
import { Differences } from '../../parts/Differences'
import { withoutServerFields } from '../../parts/manifest'
import { Modal } from '../../parts/Modal'
import { Table } from '../../parts/Table'
import { printYaml } from '../../parts/yaml'
import { useTextOf } from '../../text'
import { queryText } from '../../text/query'
import { propagationText } from '../../text/propagation'
import { TemplateLink } from './Bindings'
import { SchedulingReport, Blockers } from './PlacementExplanation'

const Editor = lazyPart(() => import('../../parts/Editor'), (part) => part.Editor)

export function PlanResult({ report }: { report: PlanReport }) {
  const t = useTextOf(propagationText)
  const affected = report.templates.filter(({ change, message, waiting }) => change !== 'Unchanged' || message || waiting.length > 0)
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
              <ObjectName object={object} exists={object.change !== 'Added'} />: <span className={object.change}>{t.changes[object.change]}</span>
            </p>
            <Differences label={`${object.kind} ${object.name}`} differences={object.differences} />
          </div>
        ))}
      </details>
      <p role="status">{affected.length === 0 ? t.nothingMoves : t.moves(affected.length)}</p>
      {report.more > 0 && <p className="notice">{t.moreTemplates(report.more)}</p>}
      {report.withheld > 0 && <p className="notice">{t.withheld(report.withheld)}</p>}
      {report.templates.map((template) => (
        <TemplateResult key={`${template.template.kind}/${template.template.namespace}/${template.template.name}`} plan={template} />
      ))}
    </section>
  )
}

/** The name of a changed object, with a link if it exists: to the page of a policy or cluster, or to the placement of a template. */
function ObjectName({ object, exists }: { object: ObjectReference; exists: boolean }) {
  if (!exists) return policyText(object, '')
  if (isKind(object, 'cluster.karmada.io', 'Cluster')) {
    return (
      <>
        {object.kind} <ClusterLink name={object.name} />
      </>
    )
  }
  return findPolicyKind(object.kind) ? <PolicyLink policy={object} /> : <TemplateLink template={object} />
}

/** The kind and name of a policy, with a link to its page. */
function PolicyLink({ policy }: { policy: PolicyName }) {
  return <Link href={policyAddress(policy)}>{policyText(policy, '')}</Link>
}

const policyText = (policy: PolicyName | undefined, none: string) => (policy ? `${policy.kind} ${policy.namespace ? `${policy.namespace}/` : ''}${policy.name}` : none)

function TemplateResult({ plan }: { plan: TemplatePlan }) {
  const t = useTextOf(propagationText)
  const [shownPlan, setShownPlan] = useState<ClusterPlan>()
  const [previousPolicy, newPolicy] = [policyText(plan.policyBefore, t.noPolicy), policyText(plan.policy, t.noPolicy)]
  return (
    <article data-template={plan.template.name}>
      <h3>
        <TemplateLink template={plan.template} /> <span className={plan.change}>{t.changes[plan.change]}</span>
      </h3>
      {plan.message && <p className="bad">{plan.message}</p>}
      {previousPolicy !== newPolicy && (
        <p>
          {t.policyChange}: {plan.policyBefore ? <PolicyLink policy={plan.policyBefore} /> : previousPolicy} → {plan.policy ? <PolicyLink policy={plan.policy} /> : newPolicy}
        </p>
      )}
      {plan.dependencies.length > 0 && (
        <p>
          {t.dependencies}{' '}
          {plan.dependencies.map((dependency) => (
            <span key={`${dependency.kind}/${dependency.name}`} className="chip">
              <TemplateLink template={dependency} />
            </span>
          ))}
        </p>
      )}
      {plan.clusters.length > 0 && (
        <Table label={`${plan.template.kind} ${plan.template.name}`} headers={t.planHeaders}>
          {plan.clusters.map((cluster) => (
            <ClusterRow key={cluster.name} plan={cluster} onShow={() => setShownPlan(cluster)} />
          ))}
        </Table>
      )}
      {plan.waiting.length > 0 && (
        <>
          <h4>{t.waiting}</h4>
          <Blockers waiting={plan.waiting} />
        </>
      )}
      {plan.scheduling && (
        <details>
          <summary>{t.scheduling}</summary>
          <SchedulingReport scheduling={plan.scheduling} />
        </details>
      )}
      {shownPlan && <Manifests plan={shownPlan} onClose={() => setShownPlan(undefined)} />}
    </article>
  )
}

function ClusterRow({ plan, onShow }: { plan: ClusterPlan; onShow: () => void }) {
  const t = useTextOf(propagationText)
  const commonText = useTextOf(queryText)
  const isPlaced = plan.change !== 'Removed'
  const wasPlaced = plan.change !== 'Added'
  return (
    <tr data-cluster={plan.name} data-change={plan.change}>
      <th scope="row">
        <ClusterLink name={plan.name} />
      </th>
      <td className={plan.change}>{t.changes[plan.change]}</td>
      <td>{wasPlaced ? (plan.replicasBefore ?? t.yes) : t.no}</td>
      <td>{isPlaced ? (plan.replicas ?? t.yes) : t.no}</td>
      <td>
        {plan.differences.length > 0 && (
          <details>
            <summary>{plan.differences.length}</summary>
            <Differences label={t.manifestOf(plan.name)} differences={plan.differences} />
          </details>
        )}
        {(plan.manifest ?? plan.manifestBefore) && (
          <button type="button" onClick={onShow} title={commonText.showFull}>
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
  const text = (manifest: ClusterPlan['manifest']) => (manifest ? printYaml(withoutServerFields(manifest, { version: false })) : '')
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
