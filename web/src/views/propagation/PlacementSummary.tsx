// Placement of a template on its overview: targets, each with a preview of leaving it, and clusters that it does not reach.
import { Link } from 'wouter'
import { objectAddress, writeAddress } from '../../api/address'
import { CONTROL_PLANE } from '../../api/client'
import { findPolicyKind } from '../../api/karmada'
import { readExplanation, type Explanation, type PolicyName, type Target, type Template } from '../../api/propagation'
import { usePolledQuery } from '../../parts/polledQuery'
import { ClusterLink } from '../../parts/ClusterLink'
import { Pill } from '../../parts/Pill'
import { Table } from '../../parts/Table'
import { useTextOf } from '../../text'
import { propagationText } from '../../text/propagation'
import { absentClusters } from './absentClusters'
import { Blockers } from './PlacementExplanation'
import './propagation.css'

/** Maximum number of targets, and of other clusters; the placement tab shows all. */
const MAX_ROWS = 8
const INTERVAL_MS = 10_000

/** Nothing for an object that no policy selects, and while the explanation is being loaded. */
export function PlacementSummary({ template }: { template: Template }) {
  const explanation = usePolledQuery(['explain', template], (signal) => readExplanation(template, signal), INTERVAL_MS)
  if (!explanation.data?.policy) return null
  return <Report explanation={explanation.data} policy={explanation.data.policy} template={template} />
}

function Report({ explanation, policy, template }: { explanation: Explanation; policy: PolicyName; template: Template }) {
  const t = useTextOf(propagationText)
  const { targets, waiting } = explanation
  const absent = absentClusters(explanation)
  const hiddenCount = Math.max(0, targets.length - MAX_ROWS) + Math.max(0, absent.length - MAX_ROWS)
  return (
    <section aria-label={t.placement}>
      <h2>{t.placement}</h2>
      {waiting.length > 0 && <Blockers waiting={waiting} />}
      <Table label={t.placement} headers={t.placementHeaders}>
        {targets.slice(0, MAX_ROWS).map((target) => (
          <TargetRow key={`${target.cluster}/${target.placed}`} target={target} policy={policy} />
        ))}
        {absent.slice(0, MAX_ROWS).map(({ cluster, filter, reason }) => (
          <tr key={cluster} data-absent={cluster}>
            <th scope="row">
              <ClusterLink name={cluster} />
            </th>
            <td className="number">0</td>
            <td>
              <Pill state={filter ?? t.notSelected} tone={filter === undefined ? 'idle' : 'warn'} />
            </td>
            <td>{reason}</td>
          </tr>
        ))}
      </Table>
      {hiddenCount > 0 && (
        <p>
          <Link href={objectAddress({ cluster: CONTROL_PLANE, ...template }, 'placement')}>{t.morePlacement(hiddenCount)}</Link>
        </p>
      )}
    </section>
  )
}

function TargetRow({ target: { cluster, placed, replicas, applied, health }, policy }: { target: Target; policy: PolicyName }) {
  const t = useTextOf(propagationText)
  const { kind, namespace, name } = policy
  const apiVersion = findPolicyKind(kind)?.apiVersion
  return (
    <tr data-target={cluster}>
      <th scope="row">
        <ClusterLink name={cluster} />
      </th>
      <td className="number">{replicas ?? t.yes}</td>
      <td>
        <Pill state={applied ? (health ?? t.isApplied) : t.isNotApplied} tone={applied ? undefined : 'bad'} />
      </td>
      <td>
        {placed === 'Scheduled' ? (
          <Link aria-label={t.moveAwayFrom(cluster)} href={`/plan${writeAddress({ apiVersion, kind, namespace, name, leave: cluster })}`}>
            {t.moveAway}
          </Link>
        ) : (
          t.placed[placed]
        )}
      </td>
    </tr>
  )
}
