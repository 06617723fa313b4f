// The lines of a log: only visible ones are rendered, optionally wrapped, with their volume over time above them.
import { memo, useLayoutEffect, useMemo, useRef, useState, type KeyboardEvent, type RefObject } from 'react'
import { parseJson, printJson } from '../../api/json'
import { ClusterName } from '../../parts/ClusterName'
import { Control } from '../../parts/Control'
import { useCopied } from '../../parts/flash'
import { clock, colour, number } from '../../parts/format'
import { step } from '../../parts/window'
import { useTextOf } from '../../text'
import { object as texts } from '../../text/object'
import { even, reveal, ROW, rowsOf, uneven, visible } from './grid'
import { highlighted, levelOf } from './level'
import { lineIdOf, type LogLine, type LogSource, type LogBuffer } from './logBuffer'
import { volumeBars } from './volume'

/** Characters of a line shown in its row; the full line is shown below. */
const SHOWN = 1_000
/** Characters by which the width of one is measured. */
const MEASURED = 50

interface LinesProps {
  buffer: LogBuffer
  /** Version of the buffer, incremented on change. */
  drawn: number
  following: boolean
  /** The line in the address. */
  linked: string | undefined
  chosen: string | undefined
  timestamps: boolean
  /** Lines that are too long for the width take several rows. */
  wrap: boolean
  /** A text that is highlighted. */
  mark: string | undefined
  onChoose: (name: string | undefined) => void
  /** Shows the lines around a selected one; absent if no line is filtered out. */
  onContext: (() => void) | undefined
}

/** The visible lines. At the end the view follows new lines; elsewhere it stays. */
export function Lines({ buffer, drawn, following, linked, chosen, timestamps, wrap, mark, onChoose, onContext }: LinesProps) {
  const t = useTextOf(texts)
  const box = useRef<HTMLDivElement>(null)
  const [place, setPlace] = useState({ top: 0, height: 600 })
  const [atEnd, setAtEnd] = useState(linked === undefined)
  /** Number of lines when the view was at the end last. */
  const seen = useRef(0)
  if (atEnd) seen.current = buffer.total
  const unseen = buffer.total - seen.current
  /** The first visible line and its distance from the top: lines are dropped, inserted and wrapped before it. */
  const anchor = useRef<{ line: LogLine; from: number }>(undefined)
  const columns = useColumns(box, wrap, timestamps)
  const grid = useMemo(() => (columns === undefined ? even(buffer.length) : uneven(rowsIn(buffer, columns))), [buffer, drawn, buffer.length, columns])
  const sought = useRef(linked)
  const selected = useMemo(() => (chosen === undefined ? undefined : buffer.findLast((line) => lineIdOf(line) === chosen)), [chosen, buffer, drawn])

  const hold = (shown: HTMLDivElement) => {
    const first = grid.at(shown.scrollTop)
    const line = buffer.at(first)
    anchor.current = line && { line, from: shown.scrollTop - grid.top(first) }
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
    const { line, from = 0 } = anchor.current ?? {}
    const place = line === undefined ? -1 : buffer.indexOf(line)
    if (sought.current !== undefined && selected) {
      sought.current = undefined
      shown.scrollTop = Math.max(0, grid.top(buffer.indexOf(selected)) - shown.clientHeight / 2)
    } else if (atEnd) shown.scrollTop = shown.scrollHeight
    else if (line) shown.scrollTop = place < 0 ? 0 : grid.top(place) + from
    hold(shown)
    setPlace({ top: shown.scrollTop, height: shown.clientHeight })
  }, [drawn, buffer, grid])

  const { first, last } = visible(grid, place.top, place.height)
  const rows = Array.from({ length: Math.max(0, last - first + 1) }, (_, nth) => buffer.at(first + nth)).filter((line) => line !== undefined)
  const move = (event: KeyboardEvent) => {
    const shown = box.current
    if (!shown || event.ctrlKey || event.metaKey || event.altKey) return
    if (event.key === 'Escape') return onChoose(undefined)
    const now = selected ? buffer.indexOf(selected) : buffer.length
    const to = step(event.key, now, buffer.length, Math.max(1, Math.floor(shown.clientHeight / ROW) - 2))
    const line = to === undefined ? undefined : buffer.at(to)
    if (to === undefined || !line) return
    event.preventDefault()
    event.stopPropagation()
    onChoose(lineIdOf(line))
    shown.scrollTop = reveal(grid, to, shown.scrollTop, shown.clientHeight)
  }
  const jump = (line: LogLine) => {
    setAtEnd(false)
    box.current?.scrollTo(0, grid.top(buffer.indexOf(line)))
  }
  return (
    <>
      {linked !== undefined && chosen === linked && !selected && <p className="notice">{t.lineIsNotThere}</p>}
      <VolumeStrip buffer={buffer} drawn={drawn} onJump={jump} />
      <div
        className={`log${timestamps ? ' timed' : ''}${wrap ? ' wrap' : ''}`}
        ref={box}
        role="listbox"
        aria-label={t.log}
        tabIndex={0}
        aria-activedescendant={selected && rows.includes(selected) ? `line-${selected.sequence}` : undefined}
        onScroll={measure}
        onKeyDown={move}
      >
        <div role="presentation" className="lines" style={{ height: grid.height }}>
          {wrap && (
            <div className="line probe" aria-hidden="true">
              <span className="source" />
              {timestamps && <time>{'0'.repeat(23)}</time>}
              <code>
                <span>{'0'.repeat(MEASURED)}</span>
              </code>
            </div>
          )}
          {rows.map((line, nth) => (
            <Row key={line.sequence} line={line} top={grid.top(first + nth)} height={grid.top(first + nth + 1) - grid.top(first + nth)} chosen={line === selected} timestamps={timestamps} mark={mark} onChoose={onChoose} />
          ))}
        </div>
      </div>
      {buffer.length === 0 && <p className="empty">{t.noLines}</p>}
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

/** Columns of the text of a line; undefined: lines are not wrapped. */
function useColumns(box: RefObject<HTMLDivElement | null>, wrap: boolean, timestamps: boolean): number | undefined {
  const [columns, setColumns] = useState<number>()
  useLayoutEffect(() => {
    const shown = box.current
    if (!wrap || !shown) return setColumns(undefined)
    const measure = () => {
      const code = shown.querySelector('.probe code')
      const letter = (code?.firstElementChild?.getBoundingClientRect().width ?? 0) / MEASURED
      if (code && letter > 0) setColumns(Math.max(1, Math.floor(code.getBoundingClientRect().width / letter)))
    }
    measure()
    const sizes = new ResizeObserver(measure)
    sizes.observe(shown)
    return () => sizes.disconnect()
  }, [box, wrap, timestamps])
  return columns
}

/** Rows of each line. */
function* rowsIn(buffer: LogBuffer, columns: number): Generator<number> {
  for (let nth = 0; nth < buffer.length; nth++) yield rowsOf(shownOf(buffer.at(nth)?.text ?? ''), columns)
}

const shownOf = (text: string) => (text.length > SHOWN ? `${text.slice(0, SHOWN)}…` : text)

/** Lines over time, with errors and warnings in their own colours; a click leads to the first line of a bar. */
function VolumeStrip({ buffer, drawn, onJump }: { buffer: LogBuffer; drawn: number; onJump: (line: LogLine) => void }) {
  const t = useTextOf(texts)
  const bars = useMemo(() => volumeBars(buffer), [buffer, drawn, buffer.length])
  if (bars.length === 0) return null
  const most = Math.max(1, ...bars.map(({ lines }) => lines))
  const sum = (of: 'lines' | 'errors' | 'warnings') => number(bars.reduce((all, bar) => all + bar[of], 0))
  const part = (n: number) => ({ height: `${(n / most) * 100}%` })
  return (
    <div className="volume" role="img" aria-label={t.volume(sum('lines'), sum('errors'), sum('warnings'))}>
      {bars.map(({ from, lines, errors, warnings, first }) => (
        <span key={from} title={`${clock(new Date(from))}: ${t.volume(number(lines), number(errors), number(warnings))}`} onClick={() => first && onJump(first)}>
          <i className="others" style={part(lines - errors - warnings)} />
          <i className="warn" style={part(warnings)} />
          <i className="bad" style={part(errors)} />
        </span>
      ))}
    </div>
  )
}

interface RowProps {
  line: LogLine
  top: number
  height: number
  chosen: boolean
  timestamps: boolean
  mark: string | undefined
  onChoose: (name: string) => void
}

const Row = memo(function Row({ line, top, height, chosen, timestamps, mark, onChoose }: RowProps) {
  const { source, text, time } = line
  return (
    <div role="option" aria-selected={chosen} id={`line-${line.sequence}`} className={`line ${levelOf(text) ?? ''}`} style={{ top, height }} onClick={() => onChoose(lineIdOf(line))}>
      <Source source={source} />
      {timestamps && <time>{time?.slice(0, 23).replace('T', ' ')}</time>}
      <code>{highlighted(shownOf(text), mark).map((piece, nth) => (piece.hit ? <mark key={nth}>{piece.text}</mark> : piece.text))}</code>
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
  const { source, text, time, truncated } = line
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
      {truncated && <p className="notice">{t.lineWasCut}</p>}
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
