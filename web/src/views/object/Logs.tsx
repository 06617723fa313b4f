import { useCallback, useMemo, useRef, useState } from 'react'
import { Link } from 'wouter'
import { objectAddress } from '../../api/address'
import { CONTROL_PLANE, type ObjectRef } from '../../api/client'
import type { KubeObject } from '../../api/types'
import { ClusterLink } from '../../parts/ClusterLink'
import { ActionButton } from '../../parts/ActionButton'
import { SkippedClusters } from '../../parts/SkippedClusters'
import { useTextOf } from '../../text'
import { objectText as texts } from '../../text/object'
import { containers, podsOf } from './facts'
import { LogContext } from './LogContext'
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
  const parameters: Omit<LogRequest, 'follow'> = {
    q,
    container: view.container,
    include: view.include,
    exclude: view.exclude,
    since: view.since,
    tail: view.tail,
    previous,
    line,
  }
  // A stream that follows the logs is kept while it is paused. With other parameters, a paused view reads the existing lines only.
  const streamKey = JSON.stringify(parameters)
  const followedKey = useRef<string>(undefined)
  if (follow) followedKey.current = streamKey
  const isPaused = !follow && followedKey.current === streamKey
  const logRequest: LogRequest = { ...parameters, follow: follow || isPaused }
  const { buffer, status, bufferVersion, pausedLines, restart } = useLogs(logRequest, isPaused)
  const refresh = () => {
    if (!follow) followedKey.current = undefined
    restart()
  }
  // The lines around a line in the address are shown, because the stream begins shortly before it.
  const isContextShown = view.around === undefined ? view.line !== undefined && view.line === line : view.around === 'true'
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
        <button type="button" onClick={refresh}>
          {t.refresh}
        </button>
      </p>
      {problem && <p role="alert">{problem}</p>}
      <LogStatusSummary status={status} buffer={buffer} pausedLines={isPaused ? pausedLines : undefined} />
      <Lines buffer={buffer} bufferVersion={bufferVersion} isFollowing={follow} linkedLineId={line} chosenLineId={view.line} timestamps={view.timestamps === 'true'} wrap={view.wrap === 'true'} mergesRepeats={view.merge === 'true'} mark={view.mark} onChoose={choose} isContextShown={isContextShown} onContext={(isShown) => change({ around: String(isShown) })} />
      {isContextShown && view.line !== undefined && <LogContext key={view.line} lineId={view.line} previous={previous} buffer={buffer} bufferVersion={bufferVersion} />}
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

interface LogStatusProps {
  status: LogStatus
  buffer: LogBuffer
  /** Number of lines that have arrived since the view was paused; undefined if it is not. */
  pausedLines: number | undefined
}

function LogStatusSummary({ status, buffer, pausedLines }: LogStatusProps) {
  const t = useTextOf(texts)
  const { state, reason, sources, refused, notices, skipped } = status
  return (
    <>
      <p className={state === 'broken' ? 'bad log-status' : 'notice log-status'}>
        <span role="status">{pausedLines === undefined ? t.logStates[state] : t.logPaused}</span> {pausedLines !== undefined && pausedLines > 0 && t.newLines(pausedLines)} {reason} · {t.logsOfPods(sources.size)} · {t.lineCount(buffer.total)}
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
          <ClusterLink name={source.cluster} /> <Link href={objectAddress({ cluster: source.cluster, apiVersion: 'v1', resource: 'pods', namespace: source.namespace, name: source.pod })}>{source.pod}</Link> {source.container}: {message}
        </p>
      ))}
    </>
  )
}
