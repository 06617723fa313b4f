// Results over time, with a brush: a drag, or arrow keys with Shift, select a range.
import { useEffect, useId, useState, type KeyboardEvent, type PointerEvent } from 'react'
import { mapConcurrently } from '../../api/concurrency'
import { countObjects } from '../../api/kube'
import { QueryProvider, usePolledQuery } from '../polledQuery'
import { clock, number, weekday } from '../format'
import { useTextOf } from '../../text'
import { resultsText } from '../../text/results'
import { bucketsOf, during, rangeOf, spanned, within, type Range } from './times'
import './time.css'

/** Concurrent requests. */
const AT_ONCE = 4
/** Milliseconds without a change of the query after which it is counted. */
const SETTLED = 800
const COUNT_EVERY = 30_000
/** Seconds of a range from which on its times are shown with the day. */
const LONG = 12 * 3_600

interface HistogramProps {
  q: string
  onAsk: (query: string) => void
}

export function Histogram(props: HistogramProps) {
  const [settled, setSettled] = useState<string>()
  useEffect(() => {
    const timer = setTimeout(() => setSettled(props.q), SETTLED)
    return () => clearTimeout(timer)
  }, [props.q])
  return (
    <div className="over-time">
      {settled !== undefined && (
        <QueryProvider>
          <Counted {...props} q={settled} />
        </QueryProvider>
      )}
    </div>
  )
}

interface Bar extends Range {
  count: number
}

function countsOf(q: string, buckets: readonly Range[], signal: AbortSignal): Promise<Bar[]> {
  return mapConcurrently(buckets, AT_ONCE, async (bucket) => ({ ...bucket, count: (await countObjects(within(q, bucket), [], signal)).total }))
}

function Counted({ q, onAsk }: HistogramProps) {
  const range = rangeOf(q, Date.now() / 1000)
  const bars = usePolledQuery(['over time', q, range.from], (signal) => countsOf(q, bucketsOf(range), signal), COUNT_EVERY)
  return bars.data ? <Bars bars={bars.data} onChoose={(chosen) => onAsk(during(q, chosen))} /> : null
}

interface Brush {
  anchor: number
  active: number
}

function Bars({ bars, onChoose }: { bars: Bar[]; onChoose: (range: Range) => void }) {
  const t = useTextOf(resultsText)
  const id = useId()
  const [brush, setBrush] = useState<Brush>()
  const [dragging, setDragging] = useState(false)
  const most = Math.max(1, ...bars.map(({ count }) => count))
  const total = bars.reduce((sum, { count }) => sum + count, 0)
  const isLong = (bars.at(-1)?.to ?? 0) - (bars[0]?.from ?? 0) > LONG
  const time = (seconds: number) => (isLong ? weekday : clock)(new Date(seconds * 1000))
  const isIn = (nth: number) => brush !== undefined && nth >= Math.min(brush.anchor, brush.active) && nth <= Math.max(brush.anchor, brush.active)
  const choose = ({ anchor, active }: Brush) => {
    const range = spanned(bars, anchor, active)
    setBrush(undefined)
    if (range) onChoose(range)
  }
  const barAt = (event: PointerEvent<HTMLElement>) => {
    const { left, width } = event.currentTarget.getBoundingClientRect()
    return Math.min(bars.length - 1, Math.max(0, Math.floor(((event.clientX - left) / width) * bars.length)))
  }
  const key = (event: KeyboardEvent) => {
    const now = brush ?? { anchor: bars.length - 1, active: bars.length - 1 }
    const to = { ArrowLeft: now.active - 1, ArrowRight: now.active + 1, Home: 0, End: bars.length - 1 }[event.key]
    if (to !== undefined) {
      const active = Math.min(bars.length - 1, Math.max(0, to))
      setBrush({ anchor: event.shiftKey ? now.anchor : active, active })
    } else if (event.key === 'Enter' || event.key === ' ') choose(now)
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
        aria-label={t.overTime(number(total))}
        aria-activedescendant={brush && `${id}-${brush.active}`}
        title={t.brushHint}
        tabIndex={0}
        onKeyDown={key}
        onPointerDown={(event) => {
          event.currentTarget.setPointerCapture(event.pointerId)
          setDragging(true)
          setBrush({ anchor: barAt(event), active: barAt(event) })
        }}
        onPointerMove={(event) => dragging && brush && setBrush({ ...brush, active: barAt(event) })}
        onPointerUp={() => {
          setDragging(false)
          if (brush) choose(brush)
        }}
        onPointerCancel={() => {
          setDragging(false)
          setBrush(undefined)
        }}
      >
        {bars.map((bar, nth) => (
          <div key={bar.from} id={`${id}-${nth}`} role="option" aria-selected={isIn(nth)} aria-label={t.bar(time(bar.from), time(bar.to), number(bar.count))}>
            <i style={{ height: `${(bar.count / most) * 100}%` }} />
          </div>
        ))}
      </div>
      <p className="ends" aria-hidden="true">
        <span>{time(bars[0]?.from ?? 0)}</span>
        <span>{brush ? `${time(spanned(bars, brush.anchor, brush.active)?.from ?? 0)} – ${time(spanned(bars, brush.anchor, brush.active)?.to ?? 0)}` : t.brushHint}</span>
        <span>{time(bars.at(-1)?.to ?? 0)}</span>
      </p>
    </>
  )
}
