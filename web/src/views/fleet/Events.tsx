// Events of the whole fleet: a histogram over time, the list, and new events as they arrive.
import { useEffect, useState } from 'react'
import { Link, useLocation, useSearch as useParameters } from 'wouter'
import { clusterAddress, objectAddress, readAddress, searchAddress, writeAddress } from '../../api/address'
import { isKind } from '../../api/client'
import { mapConcurrently } from '../../api/concurrency'
import { involvedAddress, involvedOf, lastOccurrence, newestFirst } from '../../api/involved'
import { clusterOf, countObjects, objectsOf } from '../../api/kube'
import type { KubeEvent } from '../../api/types'
import { QueryResult, usePolledQuery } from '../../parts/polledQuery'
import { ClusterName } from '../../parts/ClusterName'
import { age, clock, since } from '../../parts/format'
import { QueryFilter } from '../../parts/QueryFilter'
import { Pill } from '../../parts/Pill'
import { Table } from '../../parts/Table'
import { useTextOf } from '../../text'
import { queryText } from '../../text/query'
import { fleetText } from '../../text/fleet'
import { buckets, during, iso, isSpan, SPANS, type Bucket, type Span } from './buckets'

const MOST = 100
/** Concurrent requests for the histogram. */
const AT_ONCE = 4

interface View {
  q: string
  span: Span
  type: string
  live: boolean
  from?: string | undefined
  to?: string | undefined
}

function readView(search: string): View {
  const { q = '', span, type = '', live, from, to } = readAddress(search)
  return { q, span: isSpan(span) ? span : '1h', type, live: live !== 'false', from, to }
}

function viewAddress({ q, span, type, live, from, to }: View): string {
  return `/fleet/events${writeAddress({ q: q || undefined, span, type: type || undefined, live: live ? undefined : false, from, to })}`
}

export function Events() {
  const t = useTextOf(fleetText)
  const [, navigate] = useLocation()
  const view = readView(useParameters())
  const go = (changed: Partial<View>) => navigate(viewAddress({ ...view, ...changed }), { replace: true })
  const asked = ['kind:event', view.type && `type:${view.type}`, view.q].filter(Boolean).join(' ')
  const range = view.from && view.to ? during({ from: Date.parse(view.from) / 1000, to: Date.parse(view.to) / 1000 }) : `last:<${view.span}`
  const { q: _q, ...others } = view
  return (
    <>
      <h1>{t.events}</h1>
      <div className="acts">
        <QueryFilter label={t.eventFilter} path="/fleet/events" q={view.q} parameters={{ span: others.span, type: others.type || undefined }} placeholder="reason:FailedScheduling cluster:member1 about:pod/*" />
        <label>
          {t.span}{' '}
          <select value={view.span} onChange={(event) => go({ span: event.target.value as Span, from: undefined, to: undefined })}>
            {SPANS.map((span) => (
              <option key={span} value={span}>
                {t.spans[span]}
              </option>
            ))}
          </select>
        </label>
        <label>
          {t.type}{' '}
          <select value={view.type} onChange={(event) => go({ type: event.target.value })}>
            <option value="">{t.anyType}</option>
            <option>Warning</option>
            <option>Normal</option>
          </select>
        </label>
        <button type="button" className="live" aria-pressed={view.live} onClick={() => go({ live: !view.live })}>
          <i aria-hidden="true" className={view.live ? 'beat' : undefined} /> {t.live}
        </button>
      </div>
      <Histogram asked={asked} span={view.span} live={view.live} onChoose={({ from, to }) => go({ from: iso(from), to: iso(to) })} chosen={view.from} />
      {view.from && view.to && (
        <p>
          {t.between(clock(new Date(view.from)), clock(new Date(view.to)))}{' '}
          <button type="button" onClick={() => go({ from: undefined, to: undefined })}>
            {t.whole}
          </button>
        </p>
      )}
      <Reasons asked={`${asked} ${range}`} onChoose={(reason) => go({ q: `${view.q} reason:${reason}`.trim() })} live={view.live} />
      <EventTable q={`${asked} ${range}`} live={view.live} />
    </>
  )
}

interface Counts extends Bucket {
  warnings: number
  others: number
}

function useNow(every: number, running: boolean): number {
  const [now, setNow] = useState(() => Date.now() / 1000)
  useEffect(() => {
    if (!running) return
    const timer = setInterval(() => setNow(Date.now() / 1000), every)
    return () => clearInterval(timer)
  }, [every, running])
  return now
}

/** Past bars are not requested again; only the last ones change. */
function useCounts(asked: string, span: Span, live: boolean) {
  const now = useNow(5_000, live)
  const [known] = useState(() => new Map<string, Counts>())
  const wanted = buckets(span, now)
  const key = (bucket: Bucket) => `${asked} ${during(bucket)}`
  return usePolledQuery(
    ['histogram', asked, span, wanted[0]!.from],
    async (signal) => {
      const open = wanted.filter((bucket) => !known.has(key(bucket)))
      const one = async (bucket: Bucket): Promise<Counts> => {
        const { total, facets } = await countObjects(key(bucket), ['type'], signal)
        const warnings = facets.type?.find(({ value }) => value === 'Warning')?.count ?? 0
        const counts = { ...bucket, warnings, others: total - warnings }
        if (bucket.over) known.set(key(bucket), counts)
        return counts
      }
      const found = await mapConcurrently(open, AT_ONCE, one)
      return wanted.map((bucket) => known.get(key(bucket)) ?? found.find(({ from }) => from === bucket.from) ?? { ...bucket, warnings: 0, others: 0 })
    },
    live ? 5_000 : false,
  )
}

const WIDTH = 900
const HEIGHT = 110

function Histogram({ asked, span, live, onChoose, chosen }: { asked: string; span: Span; live: boolean; onChoose: (bucket: Bucket) => void; chosen: string | undefined }) {
  const t = useTextOf(fleetText)
  const ask = useTextOf(queryText)
  const counts = useCounts(asked, span, live)
  return (
    <QueryResult of={counts}>
      {(bars) => {
        const most = Math.max(1, ...bars.map(({ warnings, others }) => warnings + others))
        const sum = (of: 'warnings' | 'others') => bars.reduce((all, bar) => all + bar[of], 0)
        const width = WIDTH / bars.length
        const high = (count: number) => (count / most) * HEIGHT
        const time = (bar: Bucket) => clock(new Date(bar.from * 1000))
        return (
          <figure className="histogram">
            <figcaption>
              <i className="others" aria-hidden="true" /> {t.others} <i className="warnings" aria-hidden="true" /> {t.warnings}
            </figcaption>
            <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={t.histogram(sum('warnings'), sum('others'))}>
              {bars.map((bar, nth) => (
                <g key={bar.from} className={chosen === iso(bar.from) ? 'chosen' : undefined} onClick={() => onChoose(bar)}>
                  <title>{t.bucket(time(bar), bar.warnings, bar.others)}</title>
                  <rect className="room" x={nth * width} y={0} width={width} height={HEIGHT} />
                  <rect className="others" x={nth * width + 1} y={HEIGHT - high(bar.others)} width={width - 2} height={high(bar.others)} />
                  <rect className="warnings" x={nth * width + 1} y={HEIGHT - high(bar.others) - high(bar.warnings)} width={width - 2} height={high(bar.warnings)} />
                </g>
              ))}
            </svg>
            <p className="ends">
              <span>{time(bars[0]!)}</span>
              <span>{time(bars.at(-1)!)}</span>
            </p>
            <details>
              <summary>{ask.openTable}</summary>
              <Table label={t.histogram(sum('warnings'), sum('others'))} heads={t.histogramHeads}>
                {bars.map((bar) => (
                  <tr key={bar.from}>
                    <th scope="row">
                      <button type="button" onClick={() => onChoose(bar)}>
                        {time(bar)}
                      </button>
                    </th>
                    <td>{bar.warnings}</td>
                    <td>{bar.others}</td>
                  </tr>
                ))}
              </Table>
            </details>
          </figure>
        )
      }}
    </QueryResult>
  )
}

function Reasons({ asked, onChoose, live }: { asked: string; onChoose: (reason: string) => void; live: boolean }) {
  const t = useTextOf(fleetText)
  const reasons = usePolledQuery(['reasons', asked], (signal) => countObjects(asked, ['reason'], signal), live ? 10_000 : false)
  const values = reasons.data?.facets.reason ?? []
  const skipped = reasons.data?.skipped ?? []
  return (
    <>
      {skipped.length > 0 && (
        <p className="notice" role="status">
          {t.notComplete}{' '}
          {skipped.map(({ cluster, reason, ageSeconds }) => (
            <span key={cluster} className="chip">
              <ClusterName name={cluster} /> {reason}
              {ageSeconds !== undefined && `, ${t.asOf(age(ageSeconds))}`}
            </span>
          ))}
        </p>
      )}
      {values.length > 0 && (
        <p role="group" aria-label={t.reasons}>
          {values.slice(0, 12).map(({ value, count }) => (
            <button key={value} type="button" className="chip" onClick={() => onChoose(value)}>
              {value} <b>{count}</b>
            </button>
          ))}
        </p>
      )}
    </>
  )
}

/** The newest events that match a query. */
export function EventTable({ q, live, most = MOST }: { q: string; live: boolean; most?: number }) {
  const t = useTextOf(fleetText)
  const events = usePolledQuery(
    ['events', q, most],
    async (signal) => {
      const [found, count] = await Promise.all([objectsOf<KubeEvent>(`${q} sort:-last`, most, signal), countObjects(q, [], signal)])
      return { found: found.sort(newestFirst), total: count.total }
    },
    live ? 5_000 : false,
  )
  return (
    <QueryResult of={events}>
      {({ found, total }) =>
        found.length === 0 ? (
          <p className="empty">{t.noEvents}</p>
        ) : (
          <>
            <p className="notice">
              {found.length < total && `${t.firstEvents(found.length, total)} `}
              <Link href={searchAddress({ q })}>{t.asQuery}</Link>
            </p>
            <Table label={t.events} heads={t.eventHeads}>
              {found.map((event) => (
                <EventRow key={`${clusterOf(event)}/${event.metadata.namespace}/${event.metadata.name}`} event={event} />
              ))}
            </Table>
          </>
        )
      }
    </QueryResult>
  )
}

function EventRow({ event }: { event: KubeEvent }) {
  const cluster = clusterOf(event)
  const { namespace, name } = event.metadata
  const about = involvedOf(event) ?? {}
  const address = involvedAddress(cluster, about)
  const isCluster = isKind(about, 'cluster.karmada.io', 'Cluster') && about.name !== undefined
  const named = `${about.kind ?? ''} ${about.namespace ? `${about.namespace}/` : ''}${about.name ?? ''}`.trim()
  return (
    <tr>
      <td title={lastOccurrence(event)}>{since(lastOccurrence(event))}</td>
      <td>
        <ClusterName name={cluster} />
      </td>
      <td>
        <Pill state={event.type} tone={event.type === 'Warning' ? 'warn' : 'idle'} />
      </td>
      <th scope="row">
        <Link href={objectAddress({ cluster, apiVersion: 'v1', resource: 'events', namespace, name })}>{event.reason}</Link>
      </th>
      <td>
        {isCluster ? (
          <Link href={clusterAddress(about.name ?? '')}>
            {about.kind} <ClusterName name={about.name ?? ''} />
          </Link>
        ) : address === undefined ? (
          named
        ) : (
          <Link href={address}>{named}</Link>
        )}
      </td>
      <td className="number">{event.count ?? 1}</td>
      <td>{event.message ?? (event.note as string | undefined)}</td>
    </tr>
  )
}
