import { useQuery, useQueryClient } from '@tanstack/react-query'
import { lazy, Suspense, useState, type ReactNode } from 'react'
import { getJson, groupOf, reported, type ObjectRef } from '../../api/client'
import type { FacetValue, KubeObject } from '../../api/types'
import { useCanI } from '../../api/useCanI'
import { API } from '../../api/useSearch'
import { ClusterName } from '../../parts/ClusterName'
import { Control } from '../../parts/Control'
import { Differences } from '../../parts/Differences'
import { age, since } from '../../parts/format'
import { Table } from '../../parts/Table'
import { useTextOf } from '../../text'
import { historyText } from '../../text/history'
import { object as texts } from '../../text/object'
import { explain } from './explain'
import { objectParameters, copiesOf, dotted, isNoise, isSecret, ofSpec, readHistory, readVersion, withoutValues, type Diff, type Version } from './objects'
import { managerAt, summaryOf, withoutSecrets } from './summary'
import { useView } from './state'

/** Revisions whose changes are summarized at first, and with each further request of the user: each takes one comparison. */
const SUMMARIES = 20

const Restore = lazy(() => import('./Restore').then((part) => ({ default: part.Restore })))
const Printed = lazy(() => import('./JsonAsYaml').then((part) => ({ default: part.JsonAsYaml })))

/** Cached revisions of an object, differences between two of them, and from the same object in another cluster. */
export function History({ refTo, object }: { refTo: ObjectRef; object: KubeObject | undefined }) {
  const t = useTextOf(texts)
  const own = useTextOf(historyText)
  const client = useQueryClient()
  const [restoring, setRestoring] = useState<number>()
  const [isRestored, setIsRestored] = useState(false)
  const [summarized, setSummarized] = useState(SUMMARIES)
  const { cluster, resource, namespace, name } = refTo
  const may = useCanI({ cluster, verb: object ? 'update' : 'create', group: groupOf(refTo.apiVersion), resource, namespace, name })
  const whyNot = isSecret(refTo) ? own.noValues : may ? undefined : t.mayNot(object ? 'update' : 'create', resource, namespace ?? t.everywhere, cluster)
  const [view, change] = useView()
  const history = useQuery({
    queryKey: ['history', refTo],
    queryFn: ({ signal }) => readHistory(refTo, signal),
    refetchInterval: 10_000,
  })
  const all = history.data?.versions ?? []
  const spec = ofSpec(all)
  const withStatus = view.versions === 'all'
  const versions = withStatus ? all : spec
  // A revision is identified by its first seq; the latest stays selected as latest.
  const seqOf = (nth: number) => (versions[nth]?.until === undefined ? 'now' : String(versions[nth]?.seq))
  const to = view.to ?? (versions.length > 0 ? seqOf(0) : undefined)
  const from = view.from ?? (versions.length > 1 ? String(versions[1]?.seq) : undefined)
  return (
    <>
      {reported(history.error) !== undefined && <p role="alert">{explain(history.error, refTo.cluster, t)}</p>}
      {history.data && <p className="notice">{t.keptFor(age(history.data.keptForSeconds))}</p>}
      {versions.length > 0 && (
        <Table caption label={t.versions} heads={[...t.versionColumns.slice(0, 3), own.change, ...t.versionColumns.slice(3)]}>
          {versions.map((version, nth) => (
            <tr key={version.seq} className="moment">
              <th scope="row">
                {version.until === undefined ? t.now : version.deleted ? t.deletedThen : version.resourceVersion}
              </th>
              <td title={version.from}>{t.ago(since(version.from))}</td>
              <td>{version.generation || ''}</td>
              <td>
                {nth < summarized && <Summary refTo={refTo} version={version} before={versions[nth + 1]} object={object} />}
              </td>
              <td>
                <input type="radio" name="from" aria-label={t.compareFrom(version.resourceVersion)} checked={!view.with && from === seqOf(nth)} onChange={() => change({ from: seqOf(nth), with: undefined })} />
              </td>
              <td>
                <input type="radio" name="to" aria-label={t.compareTo(version.resourceVersion)} checked={!view.with && to === seqOf(nth)} onChange={() => change({ to: seqOf(nth), with: undefined })} />
              </td>
              <td>
                <button type="button" aria-pressed={view.show === String(version.seq)} onClick={() => change({ show: view.show === String(version.seq) ? undefined : String(version.seq) })}>
                  {t.manifest}
                </button>{' '}
                {version.until !== undefined && (
                  <Control why={whyNot} onClick={() => (setIsRestored(false), setRestoring(version.seq))}>
                    {own.restore}
                  </Control>
                )}
              </td>
            </tr>
          ))}
        </Table>
      )}
      {versions.length > summarized && (
        <p className="tools">
          <button type="button" onClick={() => setSummarized(summarized + SUMMARIES)}>
            {own.summarizeMore(Math.min(SUMMARIES, versions.length - summarized))}
          </button>
        </p>
      )}
      <p role="status">{isRestored ? own.restored : ''}</p>
      {restoring !== undefined && (
        <Suspense fallback={null}>
          <Restore
            refTo={refTo}
            seq={restoring}
            onClose={() => setRestoring(undefined)}
            onDone={() => {
              setRestoring(undefined)
              setIsRestored(true)
              void client.invalidateQueries()
            }}
          />
        </Suspense>
      )}
      {spec.length < all.length && (
        <p className="tools">
          <label className="option">
            <input type="checkbox" checked={withStatus} onChange={(event) => change({ versions: event.target.checked ? 'all' : undefined })} /> {t.statusVersions(all.length - spec.length)}
          </label>
        </p>
      )}
      {view.show && <Shown refTo={refTo} seq={view.show} />}
      <Elsewhere refTo={refTo} chosen={view.with} onChoose={(cluster) => change({ with: cluster })} />
      <p className="tools">
        <label className="option">
          <input type="checkbox" checked={view.noise === 'true'} onChange={(event) => change({ noise: event.target.checked ? 'true' : undefined })} /> {t.withStatus}
        </label>
      </p>
      {view.with ? (
        <Compared refTo={refTo} parameters={`with=${encodeURIComponent(view.with)}`} noise={view.noise === 'true'} heads={[<ClusterName name={refTo.cluster} />, <ClusterName name={view.with} />]} />
      ) : from && to ? (
        <Compared refTo={refTo} parameters={`from=${from}&to=${to}`} noise={view.noise === 'true'} heads={[t.before, t.after]} />
      ) : (
        history.data && <p className="empty">{t.oneVersion}</p>
      )}
    </>
  )
}

/** What the version changed, in one line, and by which field manager if that is known. */
function Summary({ refTo, version, before, object }: { refTo: ObjectRef; version: Version; before: Version | undefined; object: KubeObject | undefined }) {
  const t = useTextOf(historyText)
  const isCurrent = version.until === undefined
  const parameters = before && `from=${before.seq}&to=${isCurrent ? 'now' : version.seq}`
  const diff = useQuery({
    queryKey: ['summary', refTo, parameters, isCurrent && version.seq],
    queryFn: ({ signal }) => getJson<Diff>(`${API}/diff?${objectParameters(refTo)}&${parameters ?? ''}`, signal),
    enabled: parameters !== undefined,
    staleTime: Infinity,
  })
  if (!diff.data) return null
  const by = isCurrent ? managerAt(object, version.from) : undefined
  return (
    <>
      {summaryOf(isSecret(refTo) ? withoutSecrets(diff.data.differences) : diff.data.differences, t)} {by !== undefined && t.by(by)}
    </>
  )
}

function Shown({ refTo, seq }: { refTo: ObjectRef; seq: string }) {
  const t = useTextOf(texts)
  const version = useQuery({ queryKey: ['version', refTo, seq], queryFn: ({ signal }) => readVersion(refTo, seq, signal), staleTime: Infinity })
  if (reported(version.error) !== undefined) return <p role="alert">{explain(version.error, refTo.cluster, t)}</p>
  const shown = (object: KubeObject) => (isSecret(refTo) ? withoutValues(object) : object)
  return <Suspense fallback={<p className="empty">{t.loading}</p>}>{version.data && <Printed value={shown(version.data)} label={t.versionOf(seq)} />}</Suspense>
}

/** Other clusters that have an object of that name. */
function Elsewhere({ refTo, chosen, onChoose }: { refTo: ObjectRef; chosen: string | undefined; onChoose: (cluster: string | undefined) => void }) {
  const t = useTextOf(texts)
  const q = copiesOf(refTo)
  const clusters = useQuery({
    queryKey: ['elsewhere', q],
    queryFn: ({ signal }) => getJson<{ facets: Record<string, FacetValue[]> }>(`${API}/query?limit=0&facets=cluster&q=${encodeURIComponent(q)}`, signal),
    staleTime: 30_000,
  })
  const others = (clusters.data?.facets.cluster ?? []).map(({ value }) => value).filter((cluster) => cluster !== refTo.cluster)
  if (chosen !== undefined && !others.includes(chosen)) others.push(chosen)
  return (
    <p className="tools">
      <label>
        {t.compareWith}{' '}
        <select value={chosen ?? ''} disabled={others.length === 0} onChange={(event) => onChoose(event.target.value || undefined)}>
          <option value="">{others.length === 0 ? t.nowhereElse : t.earlierVersions}</option>
          {others.sort().map((cluster) => (
            <option key={cluster}>{cluster}</option>
          ))}
        </select>
      </label>
    </p>
  )
}

function Compared({ refTo, parameters, noise, heads }: { refTo: ObjectRef; parameters: string; noise: boolean; heads: [ReactNode, ReactNode] }) {
  const t = useTextOf(texts)
  const diff = useQuery({
    queryKey: ['diff', refTo, parameters],
    queryFn: ({ signal }) => getJson<Diff>(`${API}/diff?${objectParameters(refTo)}&${parameters}`, signal),
    placeholderData: (previous) => previous,
  })
  if (reported(diff.error) !== undefined) return <p role="alert">{explain(diff.error, refTo.cluster, t)}</p>
  if (!diff.data) return null
  const { differences, more } = diff.data
  const shown = noise ? differences : differences.filter(({ path }) => !isNoise(path))
  const left = differences.length - shown.length
  const hide = (path: string) => (isSecret(refTo) && /^(data|stringData)\b/.test(path) ? t.hidden : undefined)
  return (
    <>
      {shown.length === 0 && <p className="empty">{t.noDifference}</p>}
      {left > 0 && <p className="notice">{t.leftOut(left)}</p>}
      {more && <p className="notice">{t.moreDifferences}</p>}
      <Differences caption label={t.differences} sides={heads} of={shown.map((one) => ({ ...one, path: dotted(one.path) }))} hide={hide} />
    </>
  )
}
