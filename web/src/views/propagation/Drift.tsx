// Drift tab: desired and live state of an object in a cluster, field by field, with the managers of fields that differ.
import { Suspense } from 'react'
import { Link } from 'wouter'
import { objectAddress } from '../../api/address'
import { CONTROL_PLANE } from '../../api/client'
import { computeDrift, type FieldDifference } from '../../api/drift'
import { getObject, withTimeout } from '../../api/kube'
import { createPlan, type Template } from '../../api/propagation'
import type { KubeObject } from '../../api/types'
import { lazyPart } from '../../parts/LazyPart'
import { QueryResult, ErrorMessage, usePolledQuery } from '../../parts/polledQuery'
import { ClusterName } from '../../parts/ClusterName'
import { Value } from '../../parts/Differences'
import { formatAgeSince } from '../../parts/format'
import { Pill } from '../../parts/Pill'
import { withoutServerFields } from '../../parts/manifest'
import { Table } from '../../parts/Table'
import { printYaml } from '../../parts/yaml'
import { useTextOf } from '../../text'
import { queryText } from '../../text/query'
import { propagationText } from '../../text/propagation'
import { DriftMatrix } from './DriftMatrix'
import './propagation.css'

/** Stands for all clusters in an address; it is not a valid cluster name. */
const ALL_CLUSTERS = '*'

const Editor = lazyPart(() => import('../../parts/Editor'), (part) => part.Editor)

interface DesiredManifest {
  name: string
  manifest: KubeObject
}

/** Manifests of a template's Works by cluster. They are read from a plan without changes, for which the right to get the template is sufficient. */
async function readDesiredManifests(template: Template, signal: AbortSignal): Promise<DesiredManifest[]> {
  const storedTemplate = await getObject<KubeObject>({ cluster: CONTROL_PLANE, ...template }, signal)
  const { templates } = await createPlan({ objects: [withoutServerFields(storedTemplate, { version: false })], limit: 1 }, signal)
  const desired = (templates[0]?.clusters ?? []).flatMap(({ name, change, manifest, manifestBefore }) => {
    // For an unchanged cluster, the plan contains only `manifest`.
    const current = manifestBefore ?? (change === 'Unchanged' ? manifest : undefined)
    return current === undefined ? [] : [{ name, manifest: current }]
  })
  return desired.sort((a, b) => a.name.localeCompare(b.name))
}

interface DriftProps {
  template: Template
  /** The shown cluster, or `*` for all; absent: the first one. */
  cluster: string | undefined
  /** The address of this view for a cluster. */
  hrefOf: (cluster: string) => string
}

export function Drift({ template, cluster, hrefOf }: DriftProps) {
  const t = useTextOf(propagationText)
  const desired = usePolledQuery(['desired', template], (signal) => readDesiredManifests(template, signal), 10_000)
  return (
    <QueryResult query={desired}>
      {(clusters) => {
        const selected = clusters.find(({ name }) => name === cluster) ?? clusters[0]
        const isAll = cluster === ALL_CLUSTERS
        if (!selected) return <p className="empty">{t.notPropagated}</p>
        return (
          <>
            <nav className="acts" aria-label={t.chooseCluster}>
              {clusters.length > 1 && (
                <Link className="chip" href={hrefOf(ALL_CLUSTERS)} replace aria-current={isAll ? 'page' : undefined}>
                  {t.allClusters}
                </Link>
              )}
              {clusters.map(({ name }) => (
                <Link
                  key={name}
                  className="chip"
                  href={hrefOf(name)}
                  replace
                  aria-current={!isAll && name === selected.name ? 'page' : undefined}
                >
                  <ClusterName name={name} />
                </Link>
              ))}
            </nav>
            {isAll ? (
              <DriftMatrix template={template} desired={clusters} hrefOf={hrefOf} />
            ) : (
              <ClusterDrift key={selected.name} cluster={selected.name} desired={selected.manifest} template={template} />
            )}
          </>
        )
      }}
    </QueryResult>
  )
}

function ClusterDrift({ cluster, desired, template }: { cluster: string; desired: KubeObject; template: Template }) {
  const t = useTextOf(propagationText)
  const commonText = useTextOf(queryText)
  const ref = { cluster, ...template }
  const live = usePolledQuery(['live', ref], (signal) => withTimeout((timeoutSignal) => getObject<KubeObject>(ref, timeoutSignal), signal))
  return (
    <>
      <h2>
        {t.driftOf(cluster)} · <Link href={objectAddress(ref)}>{t.object}</Link>
      </h2>
      <p className="notice">{t.fromPlan}</p>
      {!live.data && !live.error && <p className="empty">{commonText.loading}</p>}
      {/* An unresponsive member affects only its own section. */}
      <ErrorMessage error={live.error} from={cluster} />
      {live.data && <DriftReport cluster={cluster} desired={desired} live={live.data} />}
    </>
  )
}

function DriftReport({ cluster, desired, live }: { cluster: string; desired: KubeObject; live: KubeObject }) {
  const t = useTextOf(propagationText)
  const { changed, added } = computeDrift(desired, live)
  return (
    <>
      <p role="status">
        <Pill state={changed.length === 0 ? t.same : t.fieldsDiffer(changed.length)} tone={changed.length === 0 ? 'good' : 'bad'} />
      </p>
      {changed.length > 0 && <Fields label={t.driftOf(cluster)} fields={changed} />}
      <details>
        <summary>{t.added(added.length)}</summary>
        <Fields label={t.added(added.length)} fields={added} />
      </details>
      <details>
        <summary>{t.wholeDiff}</summary>
        <Suspense fallback={null}>
          <Editor label={t.wholeDiff} original={printYaml(withoutServerFields(desired, { version: false }))} value={printYaml(withoutServerFields(live, { version: false }))} />
        </Suspense>
      </details>
    </>
  )
}

function Fields({ label, fields }: { label: string; fields: FieldDifference[] }) {
  const t = useTextOf(propagationText)
  return (
    <Table label={label} headers={t.driftHeaders}>
      {fields.map(({ path, desired, live, owners }) => (
        <tr key={path} data-path={path}>
          <th scope="row">
            <code>{path}</code>
          </th>
          <td>
            <Value value={desired} />
          </td>
          <td>
            <Value value={live} />
          </td>
          <td>
            {owners.length === 0 && <span className="why">{t.noOwner}</span>}
            {owners.map(({ manager, operation, time }) => (
              <span key={`${manager}/${operation}`} className="chip" title={time}>
                {manager} {operation && <small>{operation}</small>} {time && formatAgeSince(time)}
              </span>
            ))}
          </td>
        </tr>
      ))}
    </Table>
  )
}
