// Histogram of a query's hits over time. Dragging, or arrow keys with Shift, select a range.
import { memo, useEffect, useId, useState, type KeyboardEvent, type PointerEvent } from 'react'
import { mapConcurrently } from '../../api/concurrency'
import { countObjects } from '../../api/kube'
import { QueryProvider, usePolledQuery } from '../polledQuery'
import { formatTime, formatNumber, formatWeekdayTime } from '../format'
import { useTextOf } from '../../text'
import { resultsText } from '../../text/results'
import { splitRange, queryForRange, histogramRange, joinBuckets, queryForBucket, type Range } from './times'
import './time.css'

/** Concurrent requests for counts. */
const MAX_CONCURRENT_REQUESTS = 4
/** Time without a change of the query after which it is counted. */
const DEBOUNCE_MS = 800
const COUNT_INTERVAL_MS = 30_000
/** Times of longer ranges are shown with the weekday. */
const LONG_RANGE_SECONDS = 12 * 3_600

interface HistogramProps {
  q: string
  onQuery: (query: string) => void
}

export const Histogram = memo(function Histogram(props: HistogramProps) {
  const [debouncedQuery, setDebouncedQuery] = useState<string>()
  useEffect(() => {
    const timer = setTimeout(() => setDebouncedQuery(props.q), DEBOUNCE_MS)
    return () => clearTimeout(timer)
  }, [props.q])
  return (
    <div className="over-time">
      {debouncedQuery !== undefined && (
        <QueryProvider>
          <QueryBars {...props} q={debouncedQuery} />
        </QueryProvider>
      )}
    </div>
  )
})

interface Bar extends Range {
  count: number
}

function readCounts(q: string, buckets: readonly Range[], signal: AbortSignal): Promise<Bar[]> {
  return mapConcurrently(buckets, MAX_CONCURRENT_REQUESTS, async (bucket) => ({ ...bucket, count: (await countObjects(queryForBucket(q, bucket), [], signal)).total }))
}

const QueryBars = memo(function QueryBars({ q, onQuery }: HistogramProps) {
  const range = histogramRange(q, Date.now() / 1000)
  const bars = usePolledQuery(['over time', q, range.from], (signal) => readCounts(q, splitRange(range), signal), COUNT_INTERVAL_MS)
  return bars.data ? <Bars bars={bars.data} onChoose={(chosen) => onQuery(queryForRange(q, chosen))} /> : null
})

interface Brush {
  anchor: number
  active: number
}

function Bars({ bars, onChoose }: { bars: Bar[]; onChoose: (range: Range) => void }) {
  const t = useTextOf(resultsText)
  const id = useId()
  const [brush, setBrush] = useState<Brush>()
  const [dragging, setDragging] = useState(false)
  const max = Math.max(1, ...bars.map(({ count }) => count))
  const total = bars.reduce((sum, { count }) => sum + count, 0)
  const isLong = (bars.at(-1)?.to ?? 0) - (bars[0]?.from ?? 0) > LONG_RANGE_SECONDS
  const time = (seconds: number) => (isLong ? formatWeekdayTime : formatTime)(new Date(seconds * 1000))
  const isSelected = (nth: number) => brush !== undefined && nth >= Math.min(brush.anchor, brush.active) && nth <= Math.max(brush.anchor, brush.active)
  const confirm = ({ anchor, active }: Brush) => {
    const range = joinBuckets(bars, anchor, active)
    setBrush(undefined)
    if (range) onChoose(range)
  }
  const barAt = (event: PointerEvent<HTMLElement>) => {
    const { left: startX, width } = event.currentTarget.getBoundingClientRect()
    return Math.min(bars.length - 1, Math.max(0, Math.floor(((event.clientX - startX) / width) * bars.length)))
  }
  const handleKey = (event: KeyboardEvent) => {
    const current = brush ?? { anchor: bars.length - 1, active: bars.length - 1 }
    const to = { ArrowLeft: current.active - 1, ArrowRight: current.active + 1, Home: 0, End: bars.length - 1 }[event.key]
    if (to !== undefined) {
      const active = Math.min(bars.length - 1, Math.max(0, to))
      setBrush({ anchor: event.shiftKey ? current.anchor : active, active })
    } else if (event.key === 'Enter' || event.key === ' ') confirm(current)
    else if (event.key === 'Escape' && brush) setBrush(undefined)
    else return
    event.preventDefault()
    event.stopPropagation()
  }
  return (
    <>
      <div
        className="bars"
        role="listbox"
        aria-multiselectable="true"
        aria-orientation="horizontal"
        aria-label={t.overTime(formatNumber(total))}
        aria-activedescendant={brush && `${id}-${brush.active}`}
        title={t.brushHint}
        tabIndex={0}
        onKeyDown={handleKey}
        onPointerDown={(event) => {
          event.currentTarget.setPointerCapture(event.pointerId)
          setDragging(true)
          setBrush({ anchor: barAt(event), active: barAt(event) })
        }}
        onPointerMove={(event) => dragging && brush && setBrush({ ...brush, active: barAt(event) })}
        onPointerUp={() => {
          setDragging(false)
          if (brush) confirm(brush)
        }}
        onPointerCancel={() => {
          setDragging(false)
          setBrush(undefined)
        }}
      >
        {bars.map((bar, nth) => (
          <div key={bar.from} id={`${id}-${nth}`} role="option" aria-selected={isSelected(nth)} aria-label={t.bar(time(bar.from), time(bar.to), formatNumber(bar.count))}>
            <i style={{ height: `${(bar.count / max) * 100}%` }} />
          </div>
        ))}
      </div>
      <p className="ends" aria-hidden="true">
        <span>{time(bars[0]?.from ?? 0)}</span>
        <span>{brush ? `${time(joinBuckets(bars, brush.anchor, brush.active)?.from ?? 0)} – ${time(joinBuckets(bars, brush.anchor, brush.active)?.to ?? 0)}` : t.brushHint}</span>
        <span>{time(bars.at(-1)?.to ?? 0)}</span>
      </p>
    </>
  )
}
