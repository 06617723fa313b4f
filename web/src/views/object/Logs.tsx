import { useCallback, useMemo, useState } from 'react'
import { CONTROL_PLANE, type ObjectRef } from '../../api/client'
import type { KubeObject } from '../../api/types'
import { ClusterName } from '../../parts/ClusterName'
import { ActionButton } from '../../parts/ActionButton'
import { SkippedClusters } from '../../parts/SkippedClusters'
import { useTextOf } from '../../text'
import { objectText as texts } from '../../text/object'
import { containers, podsOf } from './facts'
import { Lines } from './LogLines'
import type { LogBuffer } from './logBuffer'
import { useViewParameters } from './state'
import { downloadLogs, useLogs, type LogStatus, type LogRequest } from './useLogs'

const SINCE = ['5m', '15m', '1h', '6h', '1d', '7d']

/** Query for the pods whose logs the view shows; undefined if no pods of the object are known. */
export function logsQuery(ref: ObjectRef, view: Record<string, string>): string | undefined {
  const allClusters = ref.cluster === CONTROL_PLANE || view.clusters === 'all'
  return podsOf(ref, allClusters ? undefined : ref.cluster)
}

/** Logs tab: the logs of all containers of an object's pods in one stream, optionally from all clusters. */
export function Logs({ objectRef, object, q }: { objectRef: ObjectRef; object: KubeObject; q: string }) {
  const t = useTextOf(texts)
  const [view, change] = useViewParameters()
  // The line in the address when the page was opened. Selecting another line must not send a request.
  const [line] = useState(view.line)
  const [problem, setProblem] = useState<string>()
  const previous = view.previous === 'true'
  const follow = view.follow !== 'false' && !previous
  const logRequest: LogRequest = {
    q,
    container: view.container,
    include: view.include,
    exclude: view.exclude,
    since: view.since,
    tail: view.tail,
    previous,
    follow,
    line,
  }
  const { buffer, status, bufferVersion, restart } = useLogs(logRequest)
  const names = useMemo(() => containers(object).map(({ name }) => name), [object])
  const choose = useCallback((name: string | undefined) => change({ line: name }), [change])
  const toggle = (name: string, isOn: boolean, isDefault = false) => change({ [name]: isOn === isDefault ? undefined : String(isOn) })
  return (
    <>
      <form
        className="tools"
        aria-label={t.lineFilters}
        onSubmit={(event) => {
          event.preventDefault()
          const form = new FormData(event.currentTarget)
          const text = (name: string) => String(form.get(name) ?? '') || undefined
          change({ include: text('include'), exclude: text('exclude'), mark: text('mark') })
        }}
      >
        <OptionalSelect label={t.container} none={t.allContainers} options={names} value={view.container} onChange={(container) => change({ container })} />
        <OptionalSelect label={t.since} none={t.lastLines} options={SINCE} value={view.since} onChange={(since) => change({ since })} />
        <label>
          {t.include} <input name="include" key={view.include} defaultValue={view.include} placeholder={t.regex} size={14} spellCheck={false} autoComplete="off" />
        </label>
        <label>
          {t.exclude} <input name="exclude" key={view.exclude} defaultValue={view.exclude} placeholder={t.regex} size={14} spellCheck={false} autoComplete="off" />
        </label>
        <label>
          {t.highlight} <input name="mark" key={`mark ${view.mark}`} defaultValue={view.mark} size={14} spellCheck={false} autoComplete="off" />
        </label>
        <button type="submit">{t.filter}</button>
      </form>
      <p className="tools">
        {objectRef.resource !== 'pods' && objectRef.cluster !== CONTROL_PLANE && (
          <label className="option">
            <input type="checkbox" checked={view.clusters === 'all'} onChange={(event) => change({ clusters: event.target.checked ? 'all' : undefined })} /> {t.allClusters}
          </label>
        )}
        <ActionButton aria-pressed={follow} disabledReason={previous ? t.previousEnded : undefined} onClick={() => toggle('follow', !follow, true)}>
          {t.follow}
        </ActionButton>
        <label className="option">
          <input type="checkbox" checked={previous} onChange={(event) => toggle('previous', event.target.checked)} /> {t.previousRun}
        </label>
        <label className="option">
          <input type="checkbox" checked={view.timestamps === 'true'} onChange={(event) => toggle('timestamps', event.target.checked)} /> {t.timestamps}
        </label>
        <label className="option">
          <input type="checkbox" checked={view.wrap === 'true'} onChange={(event) => toggle('wrap', event.target.checked)} /> {t.wrap}
        </label>
        <label className="option">
          <input type="checkbox" checked={view.merge === 'true'} onChange={(event) => toggle('merge', event.target.checked)} /> {t.mergeRepeats}
        </label>
        <button type="button" onClick={() => downloadLogs(logRequest, objectRef.name).then(() => setProblem(undefined), (error: unknown) => setProblem(error instanceof Error ? error.message : String(error)))}>
          {t.download}
        </button>
        <button type="button" onClick={restart}>
          {t.refresh}
        </button>
      </p>
      {problem && <p role="alert">{problem}</p>}
      <LogStatusSummary status={status} buffer={buffer} />
      <Lines buffer={buffer} bufferVersion={bufferVersion} isFollowing={follow} linkedLineId={line} chosenLineId={view.line} timestamps={view.timestamps === 'true'} wrap={view.wrap === 'true'} mergesRepeats={view.merge === 'true'} mark={view.mark} onChoose={choose} onContext={view.include || view.exclude ? () => change({ include: undefined, exclude: undefined }, true) : undefined} />
    </>
  )
}

interface OptionalSelectProps {
  label: string
  /** The first option, which stands for no value. */
  none: string
  options: string[]
  value: string | undefined
  onChange: (value: string | undefined) => void
}

function OptionalSelect({ label, none, options, value, onChange }: OptionalSelectProps) {
  return (
    <label>
      {label}{' '}
      <select value={value ?? ''} onChange={(event) => onChange(event.target.value || undefined)}>
        <option value="">{none}</option>
        {options.map((option) => (
          <option key={option}>{option}</option>
        ))}
      </select>
    </label>
  )
}

function LogStatusSummary({ status, buffer }: { status: LogStatus; buffer: LogBuffer }) {
  const t = useTextOf(texts)
  const { state, reason, sources, refused, notices, skipped } = status
  return (
    <>
      <p className={state === 'broken' ? 'bad log-status' : 'notice log-status'}>
        <span role="status">{t.logStates[state]}</span> {reason} · {t.logsOfPods(sources.size)} · {t.lineCount(buffer.total)}
        {buffer.dropped > 0 && <> · {t.linesDropped(buffer.dropped)}</>}
      </p>
      {notices.map((notice) => (
        <p key={notice} className="notice">
          {notice}
        </p>
      ))}
      <SkippedClusters skipped={skipped} />
      {refused.map(({ source, message }) => (
        <p key={`${source.cluster}/${source.namespace}/${source.pod}/${source.container}`} className="bad">
          <ClusterName name={source.cluster} /> {source.pod} {source.container}: {message}
        </p>
      ))}
    </>
  )
}
