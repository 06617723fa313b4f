import { useQuery } from '@tanstack/react-query'
import { lazy, Suspense, type ReactNode } from 'react'
import { getJson, reported, type ObjectRef } from '../../api/client'
import type { FacetValue, KubeObject } from '../../api/types'
import { API } from '../../api/useSearch'
import { ClusterName } from '../../parts/ClusterName'
import { Differences } from '../../parts/Differences'
import { age, since } from '../../parts/format'
import { Table } from '../../parts/Table'
import { useTextOf } from '../../text'
import { object as texts } from '../../text/object'
import { explain } from './explain'
import { asked, dotted, isNoise, isSecret, ofSpec, readHistory, readVersion, withoutValues, type Diff } from './objects'
import { useView } from './state'

const Printed = lazy(() => import('./Printed').then((part) => ({ default: part.Printed })))

/** Cached revisions of an object, differences between two of them, and from the same object in another cluster. */
export function History({ refTo }: { refTo: ObjectRef }) {
  const t = useTextOf(texts)
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
        <Table caption label={t.versions} heads={t.versionColumns}>
          {versions.map((version, nth) => (
            <tr key={version.seq}>
              <th scope="row">
                {version.until === undefined ? t.now : version.deleted ? t.deletedThen : version.resourceVersion}
              </th>
              <td title={version.from}>{t.ago(since(version.from))}</td>
              <td>{version.generation || ''}</td>
              <td>
                <input type="radio" name="from" aria-label={t.compareFrom(version.resourceVersion)} checked={!view.with && from === seqOf(nth)} onChange={() => change({ from: seqOf(nth), with: undefined })} />
              </td>
              <td>
                <input type="radio" name="to" aria-label={t.compareTo(version.resourceVersion)} checked={!view.with && to === seqOf(nth)} onChange={() => change({ to: seqOf(nth), with: undefined })} />
              </td>
              <td>
                <button type="button" aria-pressed={view.show === String(version.seq)} onClick={() => change({ show: view.show === String(version.seq) ? undefined : String(version.seq) })}>
                  {t.manifest}
                </button>
              </td>
            </tr>
          ))}
        </Table>
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
  const { apiVersion, resource, namespace, name } = refTo
  const q = `kind:${resource} name:=${name}${namespace ? ` ns:=${namespace}` : ''} apiVersion:=${apiVersion}`
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
    queryFn: ({ signal }) => getJson<Diff>(`${API}/diff?${asked(refTo)}&${parameters}`, signal),
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
