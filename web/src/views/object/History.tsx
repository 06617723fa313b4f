import { useQuery, useQueryClient } from '@tanstack/react-query'
import { Suspense, useState, type ReactNode } from 'react'
import { getJson, groupOf, viewErrorOf, type ObjectRef } from '../../api/client'
import type { FacetValue, KubeObject } from '../../api/types'
import { useCanI } from '../../api/useCanI'
import { API } from '../../api/searchApi'
import { lazyPart } from '../../parts/LazyPart'
import { ClusterName } from '../../parts/ClusterName'
import { ActionButton } from '../../parts/ActionButton'
import { Differences } from '../../parts/Differences'
import { Loading } from '../../parts/Loading'
import { formatAge, formatAgeSince } from '../../parts/format'
import { Table } from '../../parts/Table'
import { favouritesFirst, usePrefs } from '../../prefs'
import { useTextOf } from '../../text'
import { historyText } from '../../text/history'
import { objectText as texts } from '../../text/object'
import { describeError } from './describeError'
import { objectParameters, copiesQuery, toFieldPath, isVolatile, isSecret, toSpecVersions, readHistory, readVersion, withoutValues, type Diff, type Version } from './objects'
import { hasManagers, managerAt, summaryOf, withoutSecretValues } from './summary'
import { useViewParameters } from './state'

/** Number of versions whose changes are summarized at first, and with each click of the user. Each summary takes one request, or two if stored versions have field managers. */
const SUMMARY_BATCH = 20

const Restore = lazyPart(() => import('./Restore'), (part) => part.Restore)
const Printed = lazyPart(() => import('./JsonAsYaml'), (part) => part.JsonAsYaml)

/** History tab: cached versions of an object, and differences between two of them or from the same object in another cluster. */
export function History({ objectRef, object }: { objectRef: ObjectRef; object: KubeObject | undefined }) {
  const t = useTextOf(texts)
  const historyTexts = useTextOf(historyText)
  const client = useQueryClient()
  const [restoredSeq, setRestoredSeq] = useState<number>()
  const [isRestored, setIsRestored] = useState(false)
  const [summaryCount, setSummaryCount] = useState(SUMMARY_BATCH)
  const { cluster, resource, namespace, name } = objectRef
  const mayWrite = useCanI({ cluster, verb: object ? 'update' : 'create', group: groupOf(objectRef.apiVersion), resource, namespace, name })
  const restoreDisabledReason = isSecret(objectRef) ? historyTexts.noSecretValues : mayWrite ? undefined : t.mayNot(object ? 'update' : 'create', resource, namespace ?? t.anyNamespace, cluster)
  const [view, change] = useViewParameters()
  const history = useQuery({
    queryKey: ['history', objectRef],
    queryFn: ({ signal }) => readHistory(objectRef, signal),
    refetchInterval: 10_000,
  })
  const allVersions = history.data?.versions ?? []
  const specVersions = toSpecVersions(allVersions)
  const includesStatus = view.versions === 'all'
  const versions = includesStatus ? allVersions : specVersions
  // The newest stored version shows whether the server keeps the managers of fields; if not, those of the others are not requested.
  const newestStored = useStoredVersion(objectRef, versions.find(({ until }) => until !== undefined)?.seq)
  const storesManagers = hasManagers(newestStored.data)
  // A version is identified by its seq, and the current one by `now`, so that it stays selected when the object changes.
  const seqOf = (nth: number) => (versions[nth]?.until === undefined ? 'now' : String(versions[nth]?.seq))
  const to = view.to ?? (versions.length > 0 ? seqOf(0) : undefined)
  const from = view.from ?? (versions.length > 1 ? String(versions[1]?.seq) : undefined)
  return (
    <>
      {viewErrorOf(history.error) !== undefined && <p role="alert">{describeError(history.error, objectRef.cluster, t)}</p>}
      {history.data && <p className="notice">{t.retention(formatAge(history.data.keptForSeconds))}</p>}
      {versions.length > 0 && (
        <Table caption label={t.versions} headers={[...t.versionColumns.slice(0, 3), historyTexts.change, ...t.versionColumns.slice(3)]}>
          {versions.map((version, nth) => (
            <tr key={version.seq} className="moment">
              <th scope="row">
                {version.until === undefined ? t.now : version.deleted ? t.untilDeleted : version.resourceVersion}
              </th>
              <td title={version.from}>{t.ago(formatAgeSince(version.from))}</td>
              <td>{version.generation || ''}</td>
              <td>
                {nth < summaryCount && <Summary objectRef={objectRef} version={version} before={versions[nth + 1]} object={object} storesManagers={storesManagers} />}
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
                  <ActionButton disabledReason={restoreDisabledReason} onClick={() => (setIsRestored(false), setRestoredSeq(version.seq))}>
                    {historyTexts.restore}
                  </ActionButton>
                )}
              </td>
            </tr>
          ))}
        </Table>
      )}
      {versions.length > summaryCount && (
        <p className="tools">
          <button type="button" onClick={() => setSummaryCount(summaryCount + SUMMARY_BATCH)}>
            {historyTexts.summarizeMore(Math.min(SUMMARY_BATCH, versions.length - summaryCount))}
          </button>
        </p>
      )}
      <p role="status">{isRestored ? historyTexts.restored : ''}</p>
      {restoredSeq !== undefined && (
        <Suspense fallback={null}>
          <Restore
            objectRef={objectRef}
            seq={restoredSeq}
            onClose={() => setRestoredSeq(undefined)}
            onDone={() => {
              setRestoredSeq(undefined)
              setIsRestored(true)
              void client.invalidateQueries()
            }}
          />
        </Suspense>
      )}
      {specVersions.length < allVersions.length && (
        <p className="tools">
          <label className="option">
            <input type="checkbox" checked={includesStatus} onChange={(event) => change({ versions: event.target.checked ? 'all' : undefined })} /> {t.statusVersions(allVersions.length - specVersions.length)}
          </label>
        </p>
      )}
      {view.show && <VersionManifest objectRef={objectRef} seq={view.show} />}
      <ClusterChooser objectRef={objectRef} selected={view.with} onChoose={(cluster) => change({ with: cluster })} />
      <p className="tools">
        <label className="option">
          <input type="checkbox" checked={view.noise === 'true'} onChange={(event) => change({ noise: event.target.checked ? 'true' : undefined })} /> {t.withStatus}
        </label>
      </p>
      {view.with ? (
        <VersionDiff objectRef={objectRef} parameters={`with=${encodeURIComponent(view.with)}`} includesNoise={view.noise === 'true'} sides={[<ClusterName name={objectRef.cluster} />, <ClusterName name={view.with} />]} />
      ) : from && to ? (
        <VersionDiff objectRef={objectRef} parameters={`from=${from}&to=${to}`} includesNoise={view.noise === 'true'} sides={[t.before, t.after]} />
      ) : (
        history.data && <p className="empty">{t.oneVersion}</p>
      )}
    </>
  )
}

/** The manifest of a stored version; none without a seq. */
function useStoredVersion(objectRef: ObjectRef, seq: number | string | undefined) {
  return useQuery({
    queryKey: ['version', objectRef, String(seq)],
    queryFn: ({ signal }) => readVersion(objectRef, seq ?? '', signal),
    enabled: seq !== undefined,
    staleTime: Infinity,
  })
}

interface SummaryProps {
  objectRef: ObjectRef
  version: Version
  /** The previous version; absent for the oldest one, which has no summary. */
  before: Version | undefined
  /** The current object. */
  object: KubeObject | undefined
  /** True if stored versions have the managers of their fields. */
  storesManagers: boolean
}

/** Summary of a version's changes in one line, with the field manager if it is known. */
function Summary({ objectRef, version, before, object, storesManagers }: SummaryProps) {
  const t = useTextOf(historyText)
  const isCurrent = version.until === undefined
  const parameters = before && `from=${before.seq}&to=${isCurrent ? 'now' : version.seq}`
  const diff = useQuery({
    queryKey: ['summary', objectRef, parameters, isCurrent && version.seq],
    queryFn: ({ signal }) => getJson<Diff>(`${API}/diff?${objectParameters(objectRef)}&${parameters ?? ''}`, signal),
    enabled: parameters !== undefined,
    staleTime: Infinity,
  })
  const stored = useStoredVersion(objectRef, storesManagers && !isCurrent && before ? version.seq : undefined)
  if (!diff.data) return null
  const manager = managerAt(isCurrent ? object : stored.data, version.from)
  return (
    <>
      {summaryOf(isSecret(objectRef) ? withoutSecretValues(diff.data.differences) : diff.data.differences, t)} {manager !== undefined && t.by(manager)}
    </>
  )
}

function VersionManifest({ objectRef, seq }: { objectRef: ObjectRef; seq: string }) {
  const t = useTextOf(texts)
  const version = useStoredVersion(objectRef, seq)
  if (viewErrorOf(version.error) !== undefined) return <p role="alert">{describeError(version.error, objectRef.cluster, t)}</p>
  const withoutSecretValues = (object: KubeObject) => (isSecret(objectRef) ? withoutValues(object) : object)
  return <Suspense fallback={<Loading />}>{version.data && <Printed value={withoutSecretValues(version.data)} label={t.versionOf(seq)} />}</Suspense>
}

/** Selects another cluster that has an object of the same name. */
function ClusterChooser({ objectRef, selected, onChoose }: { objectRef: ObjectRef; selected: string | undefined; onChoose: (cluster: string | undefined) => void }) {
  const t = useTextOf(texts)
  const q = copiesQuery(objectRef)
  const clusters = useQuery({
    queryKey: ['elsewhere', q],
    queryFn: ({ signal }) => getJson<{ facets: Record<string, FacetValue[]> }>(`${API}/query?limit=0&facets=cluster&q=${encodeURIComponent(q)}`, signal),
    staleTime: 30_000,
  })
  const { favouriteClusters } = usePrefs()
  const others = (clusters.data?.facets.cluster ?? []).map(({ value }) => value).filter((cluster) => cluster !== objectRef.cluster)
  if (selected !== undefined && !others.includes(selected)) others.push(selected)
  return (
    <p className="tools">
      <label>
        {t.compareWith}{' '}
        <select value={selected ?? ''} disabled={others.length === 0} onChange={(event) => onChoose(event.target.value || undefined)}>
          <option value="">{others.length === 0 ? t.noOtherCluster : t.earlierVersions}</option>
          {favouritesFirst(others.sort(), favouriteClusters, (cluster) => cluster).map((cluster) => (
            <option key={cluster}>{cluster}</option>
          ))}
        </select>
      </label>
    </p>
  )
}

function VersionDiff({ objectRef, parameters, includesNoise, sides }: { objectRef: ObjectRef; parameters: string; includesNoise: boolean; sides: [ReactNode, ReactNode] }) {
  const t = useTextOf(texts)
  const diff = useQuery({
    queryKey: ['diff', objectRef, parameters],
    queryFn: ({ signal }) => getJson<Diff>(`${API}/diff?${objectParameters(objectRef)}&${parameters}`, signal),
    placeholderData: (previous) => previous,
  })
  if (viewErrorOf(diff.error) !== undefined) return <p role="alert">{describeError(diff.error, objectRef.cluster, t)}</p>
  if (!diff.data) return null
  const { differences, more } = diff.data
  const visible = includesNoise ? differences : differences.filter(({ path }) => !isVolatile(path))
  const hiddenCount = differences.length - visible.length
  const hide = (path: string) => (isSecret(objectRef) && /^(data|stringData)\b/.test(path) ? t.hidden : undefined)
  return (
    <>
      {visible.length === 0 && <p className="empty">{t.noDifference}</p>}
      {hiddenCount > 0 && <p className="notice">{t.hiddenDifferences(hiddenCount)}</p>}
      {more && <p className="notice">{t.moreDifferences}</p>}
      <Differences caption label={t.differences} sides={sides} differences={visible.map((difference) => ({ ...difference, path: toFieldPath(difference.path) }))} hide={hide} />
    </>
  )
}
