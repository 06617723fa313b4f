// Lines of a log, of which only the visible ones are rendered, with a histogram above them.
import { memo, useLayoutEffect, useMemo, useRef, useState, type KeyboardEvent, type RefObject } from 'react'
import { Link } from 'wouter'
import { clusterAddress, objectAddress } from '../../api/address'
import { CONTROL_PLANE } from '../../api/client'
import { parseJson, printJson } from '../../api/json'
import { ClusterLink } from '../../parts/ClusterLink'
import { ClusterName } from '../../parts/ClusterName'
import { ActionButton } from '../../parts/ActionButton'
import { useCopied } from '../../parts/flash'
import { formatTime, stableColour, formatNumber } from '../../parts/format'
import { rowAfterKey } from '../../parts/window'
import { useText, useTextOf } from '../../text'
import { objectText as texts } from '../../text/object'
import { unwrappedLayout, scrollTopToReveal, ROW_HEIGHT, countRows, wrappedLayout, visibleLines } from './lineLayout'
import { splitByText, levelOf } from './level'
import { lineIdOf, type LogLine, type LogSource, type LogBuffer } from './logBuffer'
import { countRepeats, findShownLine } from './repeats'
import { volumeBars } from './volume'

/** Maximum number of characters shown in a row; a selected line is shown in full. */
const MAX_SHOWN_CHARACTERS = 1_000
/** Number of characters in the element that measures the width of a character. */
const PROBE_CHARACTERS = 50

interface LinesProps {
  buffer: LogBuffer
  /** Version of the buffer, incremented on change. */
  bufferVersion: number
  isFollowing: boolean
  /** Identifier of the line in the address when the page was opened. */
  linkedLineId: string | undefined
  chosenLineId: string | undefined
  timestamps: boolean
  /** Wraps long lines. */
  wrap: boolean
  /** Shows consecutive lines of a source with the same text as one. */
  mergesRepeats: boolean
  /** Text to highlight. */
  mark: string | undefined
  onChoose: (name: string | undefined) => void
  /** The lines around the selected one are shown. */
  isContextShown: boolean
  onContext: (isShown: boolean) => void
}

/** The visible lines. If scrolled to the end, the view follows new lines; otherwise it keeps its position. */
export function Lines({ buffer, bufferVersion, isFollowing, linkedLineId, chosenLineId, timestamps, wrap, mergesRepeats, mark, onChoose, isContextShown, onContext }: LinesProps) {
  const t = useTextOf(texts)
  const box = useRef<HTMLDivElement>(null)
  const [viewport, setViewport] = useState({ top: 0, height: 600 })
  const [atEnd, setAtEnd] = useState(linkedLineId === undefined)
  /** Total number of lines when the view was last scrolled to the end. */
  const seenCount = useRef(0)
  if (atEnd) seenCount.current = buffer.total
  const unseenCount = buffer.total - seenCount.current
  /** The first visible line and the scroll offset within it. It keeps the position when lines above it are dropped, inserted or wrapped. */
  const anchor = useRef<{ line: LogLine; from: number }>(undefined)
  const columns = useColumns(box, wrap, timestamps)
  const repeats = useMemo(() => (mergesRepeats ? countRepeats(buffer) : undefined), [buffer, bufferVersion, buffer.length, mergesRepeats])
  const layout = useMemo(() => (columns === undefined && !repeats ? unwrappedLayout(buffer.length) : wrappedLayout(countRowsOfLines(buffer, columns, repeats))), [buffer, bufferVersion, buffer.length, columns, repeats])
  const soughtLineId = useRef(linkedLineId)
  const selected = useMemo(() => (chosenLineId === undefined ? undefined : buffer.findLast((line) => lineIdOf(line) === chosenLineId)), [chosenLineId, buffer, bufferVersion])

  const updateAnchor = (element: HTMLDivElement) => {
    const first = layout.at(element.scrollTop)
    const line = buffer.at(first)
    anchor.current = line && { line, from: element.scrollTop - layout.top(first) }
  }
  const measure = () => {
    const element = box.current
    if (!element) return
    updateAnchor(element)
    setViewport({ top: element.scrollTop, height: element.clientHeight })
    setAtEnd(element.scrollHeight - element.scrollTop - element.clientHeight < ROW_HEIGHT)
  }
  useLayoutEffect(() => {
    const element = box.current
    if (!element) return
    const { line, from = 0 } = anchor.current ?? {}
    const index = line === undefined ? -1 : buffer.indexOf(line)
    if (soughtLineId.current !== undefined && selected) {
      soughtLineId.current = undefined
      element.scrollTop = Math.max(0, layout.top(buffer.indexOf(selected)) - element.clientHeight / 2)
    } else if (atEnd) element.scrollTop = element.scrollHeight
    else if (line) element.scrollTop = index < 0 ? 0 : layout.top(index) + from
    updateAnchor(element)
    setViewport({ top: element.scrollTop, height: element.clientHeight })
  }, [bufferVersion, buffer, layout])

  const { first, last } = visibleLines(layout, viewport.top, viewport.height)
  const rows = Array.from({ length: Math.max(0, last - first + 1) }, (_, offset) => ({ line: buffer.at(first + offset), nth: first + offset })).flatMap(({ line, nth }) => (line === undefined || repeats?.[nth] === 0 ? [] : [{ line, nth }]))
  const handleKey = (event: KeyboardEvent) => {
    const element = box.current
    if (!element || event.ctrlKey || event.metaKey || event.altKey) return
    if (event.key === 'Escape') return onChoose(undefined)
    const now = selected ? buffer.indexOf(selected) : buffer.length
    const after = rowAfterKey(event.key, now, buffer.length, Math.max(1, Math.floor(element.clientHeight / ROW_HEIGHT) - 2))
    const to = repeats && after !== undefined ? nextShownLine(repeats, now, after) : after
    const line = to === undefined ? undefined : buffer.at(to)
    if (to === undefined || !line) return
    event.preventDefault()
    event.stopPropagation()
    onChoose(lineIdOf(line))
    element.scrollTop = scrollTopToReveal(layout, to, element.scrollTop, element.clientHeight)
  }
  const scrollToLine = (line: LogLine) => {
    setAtEnd(false)
    box.current?.scrollTo(0, layout.top(buffer.indexOf(line)))
  }
  return (
    <>
      {linkedLineId !== undefined && chosenLineId === linkedLineId && !selected && <p className="notice">{t.lineMissing}</p>}
      <VolumeStrip buffer={buffer} bufferVersion={bufferVersion} onJump={scrollToLine} />
      <div
        className={`log${timestamps ? ' timed' : ''}${wrap ? ' wrap' : ''}`}
        ref={box}
        role="grid"
        aria-label={t.log}
        tabIndex={0}
        aria-activedescendant={selected && rows.some(({ line }) => line === selected) ? `line-${selected.sequence}` : undefined}
        onScroll={measure}
        onKeyDown={handleKey}
      >
        <div role="presentation" className="lines" style={{ height: layout.height }}>
          {wrap && (
            <div className="line probe" aria-hidden="true">
              <span className="source" />
              {timestamps && <time>{'0'.repeat(23)}</time>}
              <code>
                <span>{'0'.repeat(PROBE_CHARACTERS)}</span>
              </code>
            </div>
          )}
          {rows.map(({ line, nth }) => (
            <Row key={line.sequence} line={line} repeats={repeats?.[nth] ?? 1} top={layout.top(nth)} height={layout.top(nth + 1) - layout.top(nth)} isChosen={line === selected} timestamps={timestamps} mark={mark} onChoose={onChoose} />
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
            {isFollowing ? t.toEndAndFollow : t.toEnd} {unseenCount > 0 && t.newLines(unseenCount)}
          </button>
        </p>
      )}
      {selected && <SelectedLine line={selected} isContextShown={isContextShown} onContext={onContext} onClose={() => onChoose(undefined)} />}
    </>
  )
}

/** Number of characters that fit a row; undefined while lines are not wrapped. */
function useColumns(box: RefObject<HTMLDivElement | null>, wrap: boolean, timestamps: boolean): number | undefined {
  const [columns, setColumns] = useState<number>()
  useLayoutEffect(() => {
    const element = box.current
    if (!wrap || !element) return setColumns(undefined)
    const measure = () => {
      const code = element.querySelector('.probe code')
      const letter = (code?.firstElementChild?.getBoundingClientRect().width ?? 0) / PROBE_CHARACTERS
      if (code && letter > 0) setColumns(Math.max(1, Math.floor(code.getBoundingClientRect().width / letter)))
    }
    measure()
    const sizes = new ResizeObserver(measure)
    sizes.observe(element)
    return () => sizes.disconnect()
  }, [box, wrap, timestamps])
  return columns
}

/** Yields the number of rows of each line: one, if lines are not wrapped, and none for a line that an earlier one stands for. */
function* countRowsOfLines(buffer: LogBuffer, columns: number | undefined, repeats: readonly number[] | undefined): Generator<number> {
  for (let nth = 0; nth < buffer.length; nth++) {
    const count = repeats?.[nth] ?? 1
    yield count === 0 ? 0 : columns === undefined ? 1 : countRows(shownText(buffer.at(nth)?.text ?? '', count), columns)
  }
}

/** The line after a key, without lines that an earlier one stands for. */
function nextShownLine(repeats: readonly number[], now: number, after: number): number {
  if (after <= now) return findShownLine(repeats, after)
  const next = repeats.findIndex((count, nth) => nth >= after && count > 0)
  return next < 0 ? findShownLine(repeats, after) : next
}

/** The text of a line that stands for a number of lines. */
const shownText = (text: string, repeats: number) => (repeats > 1 ? `${truncate(text)} ×${repeats}` : truncate(text))

const truncate = (text: string) => (text.length > MAX_SHOWN_CHARACTERS ? `${text.slice(0, MAX_SHOWN_CHARACTERS)}…` : text)

/** Histogram of the lines over time, by level. A click on a bar scrolls to its first line. */
function VolumeStrip({ buffer, bufferVersion, onJump }: { buffer: LogBuffer; bufferVersion: number; onJump: (line: LogLine) => void }) {
  const t = useTextOf(texts)
  const bars = useMemo(() => volumeBars(buffer), [buffer, bufferVersion, buffer.length])
  if (bars.length === 0) return null
  const max = Math.max(1, ...bars.map(({ lines }) => lines))
  const sum = (level: 'lines' | 'errors' | 'warnings') => formatNumber(bars.reduce((all, bar) => all + bar[level], 0))
  const heightOf = (n: number) => ({ height: `${(n / max) * 100}%` })
  return (
    <div className="volume" role="img" aria-label={t.volume(sum('lines'), sum('errors'), sum('warnings'))}>
      {bars.map(({ from, lines, errors, warnings, first }) => (
        <span key={from} title={`${formatTime(new Date(from))}: ${t.volume(formatNumber(lines), formatNumber(errors), formatNumber(warnings))}`} onClick={() => first && onJump(first)}>
          <i className="others" style={heightOf(lines - errors - warnings)} />
          <i className="warn" style={heightOf(warnings)} />
          <i className="bad" style={heightOf(errors)} />
        </span>
      ))}
    </div>
  )
}

interface RowProps {
  line: LogLine
  /** Number of lines that it stands for. */
  repeats: number
  top: number
  height: number
  isChosen: boolean
  timestamps: boolean
  mark: string | undefined
  onChoose: (name: string) => void
}

const Row = memo(function Row({ line, repeats, top, height, isChosen, timestamps, mark, onChoose }: RowProps) {
  const { source, text, time } = line
  return (
    <div
      role="row"
      aria-selected={isChosen}
      id={`line-${line.sequence}`}
      className={`line ${levelOf(text) ?? ''}`}
      style={{ top, height }}
      // A click on a link leaves the page.
      onClick={(event) => (event.target as Element).closest('a') === null && onChoose(lineIdOf(line))}
    >
      <Source source={source} />
      {timestamps && <time role="gridcell">{time?.slice(0, 23).replace('T', ' ')}</time>}
      <code role="gridcell">{splitByText(shownText(text, repeats), mark).map((piece, nth) => (piece.hit ? <mark key={nth}>{piece.text}</mark> : piece.text))}</code>
    </div>
  )
})

/** The page of the pod that wrote a line. */
const podAddress = ({ cluster, namespace, pod }: Omit<LogSource, 'container'>) => objectAddress({ cluster, apiVersion: 'v1', resource: 'pods', namespace, name: pod })

/** The source of a line: cluster, pod and container. Its links are not tab stops, because there is one for each line. */
function Source({ source: { cluster, pod, container, namespace } }: { source: LogSource }) {
  return (
    <span role="gridcell" className="source" title={`${cluster} ${namespace}/${pod} ${container}`}>
      {cluster === CONTROL_PLANE ? (
        <ClusterName name={cluster} />
      ) : (
        <Link href={clusterAddress(cluster)} tabIndex={-1}>
          <ClusterName name={cluster} />
        </Link>
      )}
      <span className="pod" style={{ borderLeftColor: stableColour(`${cluster}/${pod}`) }}>
        <Link href={podAddress({ cluster, pod, namespace })} tabIndex={-1}>
          {pod}
        </Link>{' '}
        {container}
      </span>
    </span>
  )
}

/** The selected line in full, with a button that copies its link. */
function SelectedLine({ line, isContextShown, onContext, onClose }: Pick<LinesProps, 'isContextShown' | 'onContext'> & { line: LogLine; onClose: () => void }) {
  const t = useTextOf(texts)
  const common = useText()
  const [copied, copy] = useCopied()
  const { source, text, time, truncated } = line
  return (
    <section className="whole" aria-label={t.chosenLine}>
      <p className="tools">
        <ClusterLink name={source.cluster} />
        <Link href={podAddress(source)}>
          {source.namespace}/{source.pod}
        </Link>{' '}
        {source.container} <time>{time}</time>
        <ActionButton disabledReason={navigator.clipboard ? undefined : t.noClipboard} onClick={() => void copy(window.location.href)}>
          {copied !== undefined ? t.copied : t.copyLink}
        </ActionButton>
        <ActionButton aria-pressed={isContextShown} onClick={() => onContext(!isContextShown)}>
          {t.context}
        </ActionButton>
        <button type="button" onClick={onClose}>
          {common.close}
        </button>
      </p>
      <pre tabIndex={0}>{formatJson(text)}</pre>
      {truncated && <p className="notice">{t.lineTruncated}</p>}
    </section>
  )
}

/** Formats JSON with indentation; other text is returned unchanged. */
function formatJson(text: string): string {
  if (!/^\s*[{[]/.test(text)) return text
  try {
    return printJson(parseJson(text), 2)
  } catch {
    return text
  }
}
