// Desired and live state of an object in a cluster, field by field, with the managers of fields that differ.
import { lazy, Suspense } from 'react'
import { Link } from 'wouter'
import { objectAddress } from '../../api/address'
import { CONTROL_PLANE } from '../../api/client'
import { driftOf, type Differing } from '../../api/drift'
import { getObject, withTimeout } from '../../api/kube'
import { plan, type Template } from '../../api/propagation'
import type { KubeObject } from '../../api/types'
import { QueryResult, Problem, usePolledQuery } from '../../parts/polledQuery'
import { ClusterName } from '../../parts/ClusterName'
import { Value } from '../../parts/Differences'
import { since } from '../../parts/format'
import { Pill } from '../../parts/Pill'
import { withoutServerFields } from '../../parts/manifest'
import { Table } from '../../parts/Table'
import { print } from '../../parts/yaml'
import { useTextOf } from '../../text'
import { queryText } from '../../text/query'
import { propagationText } from '../../text/propagation'
import './propagation.css'

const Editor = lazy(() => import('../../parts/Editor').then((part) => ({ default: part.Editor })))

interface Wanted {
  name: string
  carried: KubeObject
}

/** Manifests of Works, from a plan without changes: the right to get the template is sufficient. */
async function wantedOf(template: Template, signal: AbortSignal): Promise<Wanted[]> {
  const stored = await getObject<KubeObject>({ cluster: CONTROL_PLANE, ...template }, signal)
  const { templates } = await plan({ objects: [withoutServerFields(stored, { version: false })], limit: 1 })
  const wanted = (templates[0]?.clusters ?? []).flatMap(({ name, change, manifest, manifestBefore }) => {
    // For unchanged clusters, the plan contains the manifest once.
    const carried = manifestBefore ?? (change === 'Unchanged' ? manifest : undefined)
    return carried === undefined ? [] : [{ name, carried }]
  })
  return wanted.sort((a, b) => a.name.localeCompare(b.name))
}

interface DriftProps {
  template: Template
  /** The shown cluster; absent: the first one. */
  cluster: string | undefined
  /** The address of this view for a cluster. */
  hrefOf: (cluster: string) => string
}

export function Drift({ template, cluster, hrefOf }: DriftProps) {
  const t = useTextOf(propagationText)
  const wanted = usePolledQuery(['wanted', template], (signal) => wantedOf(template, signal), 10_000)
  return (
    <QueryResult of={wanted}>
      {(clusters) => {
        const shown = clusters.find(({ name }) => name === cluster) ?? clusters[0]
        if (!shown) return <p className="empty">{t.noWanted}</p>
        return (
          <>
            <nav className="acts" aria-label={t.chooseCluster}>
              {clusters.map(({ name }) => (
                <Link
                  key={name}
                  className="chip"
                  href={hrefOf(name)}
                  replace
                  aria-current={name === shown.name ? 'page' : undefined}
                >
                  <ClusterName name={name} />
                </Link>
              ))}
            </nav>
            <InCluster key={shown.name} cluster={shown.name} wanted={shown.carried} template={template} />
          </>
        )
      }}
    </QueryResult>
  )
}

function InCluster({ cluster, wanted, template }: { cluster: string; wanted: KubeObject; template: Template }) {
  const t = useTextOf(propagationText)
  const ask = useTextOf(queryText)
  const ref = { cluster, ...template }
  const live = usePolledQuery(['live', ref], (signal) => withTimeout((within) => getObject<KubeObject>(ref, within), signal))
  return (
    <>
      <h2>
        {t.driftOf(cluster)} · <Link href={objectAddress(ref)}>{t.object}</Link>
      </h2>
      <p className="notice">{t.fromPlan}</p>
      {!live.data && !live.error && <p className="empty">{ask.loading}</p>}
      {/* An unresponsive member affects only its own section. */}
      <Problem error={live.error} from={cluster} />
      {live.data && <Compared cluster={cluster} wanted={wanted} live={live.data} />}
    </>
  )
}

function Compared({ cluster, wanted, live }: { cluster: string; wanted: KubeObject; live: KubeObject }) {
  const t = useTextOf(propagationText)
  const { differing, added } = driftOf(wanted, live)
  return (
    <>
      <p role="status">
        <Pill state={differing.length === 0 ? t.same : t.fieldsDiffer(differing.length)} tone={differing.length === 0 ? 'good' : 'bad'} />
      </p>
      {differing.length > 0 && <Fields label={t.driftOf(cluster)} fields={differing} />}
      <details>
        <summary>{t.added(added.length)}</summary>
        <Fields label={t.added(added.length)} fields={added} />
      </details>
      <details>
        <summary>{t.wholeDiff}</summary>
        <Suspense fallback={null}>
          <Editor label={t.wholeDiff} original={print(withoutServerFields(wanted, { version: false }))} value={print(withoutServerFields(live, { version: false }))} />
        </Suspense>
      </details>
    </>
  )
}

function Fields({ label, fields }: { label: string; fields: Differing[] }) {
  const t = useTextOf(propagationText)
  return (
    <Table label={label} heads={t.driftHeads}>
      {fields.map(({ path, wanted, live, owners }) => (
        <tr key={path} data-path={path}>
          <th scope="row">
            <code>{path}</code>
          </th>
          <td>
            <Value value={wanted} />
          </td>
          <td>
            <Value value={live} />
          </td>
          <td>
            {owners.length === 0 && <span className="why">{t.nobody}</span>}
            {owners.map(({ manager, operation, time }) => (
              <span key={`${manager}/${operation}`} className="chip" title={time}>
                {manager} {operation && <small>{operation}</small>} {time && since(time)}
              </span>
            ))}
          </td>
        </tr>
      ))}
    </Table>
  )
}
