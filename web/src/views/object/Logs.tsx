import { memo, useCallback, useLayoutEffect, useMemo, useRef, useState } from 'react'
import { CONTROL_PLANE, type ObjectRef } from '../../api/client'
import { parseJson, printJson } from '../../api/json'
import type { KubeObject } from '../../api/types'
import { ClusterName } from '../../parts/ClusterName'
import { Control } from '../../parts/Control'
import { useCopied } from '../../parts/flash'
import { colour } from '../../parts/format'
import { reveal, step, visible } from '../../parts/window'
import { useTextOf } from '../../text'
import { object as texts } from '../../text/object'
import { containers, podsOf } from './facts'
import { highlighted, levelOf } from './level'
import { nameOf, type LogLine, type LogSource, type Ring } from './ring'
import { useView } from './state'
import { download, useLogs, type Told, type Wish } from './useLogs'

const ROW = 20
/** Characters of a line shown in its row; the full line is shown below. */
const SHOWN = 1_000
const SINCE = ['5m', '15m', '1h', '6h', '1d', '7d']

/** The query for the logs of a view; undefined: the object has no known pods. */
export function logsOf(ref: ObjectRef, view: Record<string, string>): string | undefined {
  const everywhere = ref.cluster === CONTROL_PLANE || view.clusters === 'all'
  return podsOf(ref, everywhere ? undefined : ref.cluster)
}

/** The logs of an object's pods in one stream: of all containers, and of all clusters if there are several. */
export function Logs({ refTo, object, q }: { refTo: ObjectRef; object: KubeObject; q: string }) {
  const t = useTextOf(texts)
  const [view, change] = useView()
  // The line in the address at load time: selecting another one sends no request.
  const [line] = useState(view.line)
  const [problem, setProblem] = useState<string>()
  const previous = view.previous === 'true'
  const follow = view.follow !== 'false' && !previous
  const wish: Wish = {
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
  const { ring, told, drawn, again } = useLogs(wish)
  const names = useMemo(() => containers(object).map(({ name }) => name), [object])
  const choose = useCallback((name: string | undefined) => change({ line: name }), [change])
  const toggle = (name: string, on: boolean, usual = false) => change({ [name]: on === usual ? undefined : String(on) })
  return (
    <>
      <form
        className="tools"
        aria-label={t.whichLines}
        onSubmit={(event) => {
          event.preventDefault()
          const form = new FormData(event.currentTarget)
          const text = (name: string) => String(form.get(name) ?? '') || undefined
          change({ include: text('include'), exclude: text('exclude'), mark: text('mark') })
        }}
      >
        <label>
          {t.container}{' '}
          <select value={view.container ?? ''} onChange={(event) => change({ container: event.target.value || undefined })}>
            <option value="">{t.allContainers}</option>
            {names.map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        </label>
        <label>
          {t.since}{' '}
          <select value={view.since ?? ''} onChange={(event) => change({ since: event.target.value || undefined })}>
            <option value="">{t.lastLines}</option>
            {SINCE.map((time) => (
              <option key={time}>{time}</option>
            ))}
          </select>
        </label>
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
        {refTo.resource !== 'pods' && refTo.cluster !== CONTROL_PLANE && (
          <label className="option">
            <input type="checkbox" checked={view.clusters === 'all'} onChange={(event) => change({ clusters: event.target.checked ? 'all' : undefined })} /> {t.allClusters}
          </label>
        )}
        <Control aria-pressed={follow} why={previous ? t.previousEnded : undefined} onClick={() => toggle('follow', !follow, true)}>
          {t.follow}
        </Control>
        <label className="option">
          <input type="checkbox" checked={previous} onChange={(event) => toggle('previous', event.target.checked)} /> {t.previousRun}
        </label>
        <label className="option">
          <input type="checkbox" checked={view.timestamps === 'true'} onChange={(event) => toggle('timestamps', event.target.checked)} /> {t.timestamps}
        </label>
        <button type="button" onClick={() => download(wish, refTo.name).then(() => setProblem(undefined), (error: unknown) => setProblem(error instanceof Error ? error.message : String(error)))}>
          {t.download}
        </button>
        <button type="button" onClick={again}>
          {t.askAgain}
        </button>
      </p>
      {problem && <p role="alert">{problem}</p>}
      <Said told={told} ring={ring} />
      <Lines ring={ring} drawn={drawn} following={follow} linked={line} chosen={view.line} timestamps={view.timestamps === 'true'} mark={view.mark} onChoose={choose} onContext={view.include || view.exclude ? () => change({ include: undefined, exclude: undefined }, true) : undefined} />
    </>
  )
}

function Said({ told, ring }: { told: Told; ring: Ring }) {
  const t = useTextOf(texts)
  const { state, why, sources, refused, notices, skipped } = told
  return (
    <>
      <p className={state === 'broken' ? 'bad said' : 'notice said'}>
        <span role="status">{t.logStates[state]}</span> {why} · {t.logsOfPods(sources.size)} · {t.linesCame(ring.total)}
        {ring.left > 0 && <> · {t.linesLeft(ring.left)}</>}
      </p>
      {notices.map((notice) => (
        <p key={notice} className="notice">
          {notice}
        </p>
      ))}
      {skipped.map(({ cluster, reason }) => (
        <p key={cluster} className="bad">
          <ClusterName name={cluster} />: {reason}
        </p>
      ))}
      {refused.map(({ source, message }) => (
        <p key={`${source.cluster}/${source.namespace}/${source.pod}/${source.container}`} className="bad">
          <ClusterName name={source.cluster} /> {source.pod} {source.container}: {message}
        </p>
      ))}
    </>
  )
}

interface LinesProps {
  ring: Ring
  /** Version of the ring, incremented on change. */
  drawn: number
  following: boolean
  /** The line in the address. */
  linked: string | undefined
  chosen: string | undefined
  timestamps: boolean
  /** A text that is highlighted. */
  mark: string | undefined
  onChoose: (name: string | undefined) => void
  /** Shows the lines around a selected one; absent if no line is filtered out. */
  onContext: (() => void) | undefined
}

/** The visible lines. At the end the view follows new lines; elsewhere it stays. */
function Lines({ ring, drawn, following, linked, chosen, timestamps, mark, onChoose, onContext }: LinesProps) {
  const t = useTextOf(texts)
  const box = useRef<HTMLDivElement>(null)
  const [place, setPlace] = useState({ top: 0, height: 600 })
  const [atEnd, setAtEnd] = useState(linked === undefined)
  /** Number of lines when the view was at the end last. */
  const seen = useRef(0)
  if (atEnd) seen.current = ring.total
  const unseen = ring.total - seen.current
  /** The first visible line and its place at the last rendering: lines are dropped and inserted before it. */
  const anchor = useRef<{ line: LogLine; place: number }>(undefined)
  const sought = useRef(linked)
  const selected = useMemo(() => (chosen === undefined ? undefined : ring.findLast((line) => nameOf(line) === chosen)), [chosen, ring, drawn])

  const hold = (shown: HTMLDivElement) => {
    const place = Math.floor(shown.scrollTop / ROW)
    const line = ring.at(place)
    anchor.current = line && { line, place }
  }
  const measure = () => {
    const shown = box.current
    if (!shown) return
    hold(shown)
    setPlace({ top: shown.scrollTop, height: shown.clientHeight })
    setAtEnd(shown.scrollHeight - shown.scrollTop - shown.clientHeight < ROW)
  }
  useLayoutEffect(() => {
    const shown = box.current
    if (!shown) return
    const { line, place: held = 0 } = anchor.current ?? {}
    if (sought.current !== undefined && selected) {
      sought.current = undefined
      shown.scrollTop = Math.max(0, ring.placeOf(selected) * ROW - shown.clientHeight / 2)
    } else if (atEnd) shown.scrollTop = shown.scrollHeight
    else if (line) shown.scrollTop += (ring.placeOf(line) - held) * ROW
    hold(shown)
    setPlace({ top: shown.scrollTop, height: shown.clientHeight })
  }, [drawn, ring])

  const { first, last } = visible(place.top, place.height, ROW, ring.length)
  const rows = Array.from({ length: Math.max(0, last - first + 1) }, (_, nth) => ring.at(first + nth)).filter((line) => line !== undefined)
  const move = (event: React.KeyboardEvent) => {
    const shown = box.current
    if (!shown || event.ctrlKey || event.metaKey || event.altKey) return
    if (event.key === 'Escape') return onChoose(undefined)
    const now = selected ? ring.placeOf(selected) : ring.length
    const to = step(event.key, now, ring.length, Math.max(1, Math.floor(shown.clientHeight / ROW) - 2))
    const line = to === undefined ? undefined : ring.at(to)
    if (to === undefined || !line) return
    event.preventDefault()
    event.stopPropagation()
    onChoose(nameOf(line))
    shown.scrollTop = reveal(to, shown.scrollTop, shown.clientHeight, ROW, 0)
  }
  return (
    <>
      {linked !== undefined && chosen === linked && !selected && <p className="notice">{t.lineIsNotThere}</p>}
      <div
        className={`log${timestamps ? ' timed' : ''}`}
        ref={box}
        role="listbox"
        aria-label={t.log}
        tabIndex={0}
        aria-activedescendant={selected && rows.includes(selected) ? `line-${selected.nth}` : undefined}
        onScroll={measure}
        onKeyDown={move}
      >
        <div role="presentation" className="lines" style={{ height: ring.length * ROW }}>
          {rows.map((line, nth) => (
            <Row key={line.nth} line={line} top={(first + nth) * ROW} chosen={line === selected} timestamps={timestamps} mark={mark} onChoose={onChoose} />
          ))}
        </div>
      </div>
      {ring.length === 0 && <p className="empty">{t.noLines}</p>}
      {!atEnd && (
        <p className="tools">
          <button
            type="button"
            onClick={() => {
              setAtEnd(true)
              box.current?.scrollTo(0, box.current.scrollHeight)
            }}
          >
            {following ? t.toEndAndFollow : t.toEnd} {unseen > 0 && t.newLines(unseen)}
          </button>
        </p>
      )}
      {selected && <Whole line={selected} onContext={onContext} onClose={() => onChoose(undefined)} />}
    </>
  )
}

interface RowProps {
  line: LogLine
  top: number
  chosen: boolean
  timestamps: boolean
  mark: string | undefined
  onChoose: (name: string) => void
}

const Row = memo(function Row({ line, top, chosen, timestamps, mark, onChoose }: RowProps) {
  const { source, text, time } = line
  const shown = text.length > SHOWN ? `${text.slice(0, SHOWN)}…` : text
  return (
    <div role="option" aria-selected={chosen} id={`line-${line.nth}`} className={`line ${levelOf(text) ?? ''}`} style={{ top }} onClick={() => onChoose(nameOf(line))}>
      <Source source={source} />
      {timestamps && <time>{time?.slice(0, 23).replace('T', ' ')}</time>}
      <code>{highlighted(shown, mark).map((piece, nth) => (piece.hit ? <mark key={nth}>{piece.text}</mark> : piece.text))}</code>
    </div>
  )
})

/** The source of a line: cluster with colour and shape, pod with its colour. */
function Source({ source: { cluster, pod, container, namespace } }: { source: LogSource }) {
  return (
    <span className="source" title={`${cluster} ${namespace}/${pod} ${container}`}>
      <ClusterName name={cluster} />
      <span className="pod" style={{ borderLeftColor: colour(`${cluster}/${pod}`) }}>
        {pod} {container}
      </span>
    </span>
  )
}

/** A selected line in full, with its address. */
function Whole({ line, onContext, onClose }: { line: LogLine; onContext: (() => void) | undefined; onClose: () => void }) {
  const t = useTextOf(texts)
  const [copied, copy] = useCopied()
  const { source, text, time, cut } = line
  return (
    <section className="whole" aria-label={t.chosenLine}>
      <p className="tools">
        <ClusterName name={source.cluster} /> {source.namespace}/{source.pod} {source.container} <time>{time}</time>
        <Control why={navigator.clipboard ? undefined : t.noClipboard} onClick={() => void copy(window.location.href)}>
          {copied !== undefined ? t.copied : t.copyLink}
        </Control>
        {onContext && (
          <button type="button" onClick={onContext}>
            {t.context}
          </button>
        )}
        <button type="button" onClick={onClose}>
          {t.close}
        </button>
      </p>
      <pre tabIndex={0}>{readable(text)}</pre>
      {cut && <p className="notice">{t.lineWasCut}</p>}
    </section>
  )
}

/** JSON formatted on several lines; other text unchanged. */
function readable(text: string): string {
  if (!/^\s*[{[]/.test(text)) return text
  try {
    return printJson(parseJson(text), 2)
  } catch {
    return text
  }
}
