// Events page of the fleet: a histogram over time and a list, both live.
import { useEffect, useState } from 'react'
import { Link, useLocation, useSearch as useParameters } from 'wouter'
import { clusterAddress, objectAddress, readAddress, searchAddress, writeAddress } from '../../api/address'
import { isKind } from '../../api/client'
import { mapConcurrently } from '../../api/concurrency'
import { involvedAddress, involvedObjectOf, lastOccurrence, newestFirst } from '../../api/involved'
import { clusterOf, countObjects, queryObjects } from '../../api/kube'
import type { KubeEvent } from '../../api/types'
import { QueryResult, usePolledQuery } from '../../parts/polledQuery'
import { ClusterLink } from '../../parts/ClusterLink'
import { ClusterName } from '../../parts/ClusterName'
import { formatTime, formatAgeSince } from '../../parts/format'
import { Options } from '../../parts/Options'
import { QueryFilter } from '../../parts/QueryFilter'
import { Pill } from '../../parts/Pill'
import { SkippedClusters } from '../../parts/SkippedClusters'
import { Table } from '../../parts/Table'
import { useTextOf } from '../../text'
import { queryText } from '../../text/query'
import { fleetText } from '../../text/fleet'
import { splitSpan, bucketQuery, formatIso, isSpan, SPANS, type Bucket, type Span } from './buckets'

const MAX_EVENTS = 100
/** Concurrent requests for the histogram. */
const MAX_CONCURRENT_REQUESTS = 4

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
  const updateView = (changed: Partial<View>) => navigate(viewAddress({ ...view, ...changed }), { replace: true })
  const query = ['kind:event', view.type && `type:${view.type}`, view.q].filter(Boolean).join(' ')
  const range = view.from && view.to ? bucketQuery({ from: Date.parse(view.from) / 1000, to: Date.parse(view.to) / 1000 }) : `last:<${view.span}`
  const { q: _q, ...others } = view
  return (
    <>
      <h1>{t.events}</h1>
      <div className="acts">
        <QueryFilter label={t.eventFilter} path="/fleet/events" q={view.q} parameters={{ span: others.span, type: others.type || undefined }} placeholder="reason:FailedScheduling cluster:member1 about:pod/*" />
        <label>
          {t.span}{' '}
          <select value={view.span} onChange={(event) => updateView({ span: event.target.value as Span, from: undefined, to: undefined })}>
            <Options values={SPANS} labels={t.spans} />
          </select>
        </label>
        <label>
          {t.type}{' '}
          <select value={view.type} onChange={(event) => updateView({ type: event.target.value })}>
            <option value="">{t.anyType}</option>
            <option>Warning</option>
            <option>Normal</option>
          </select>
        </label>
        <button type="button" className="live" aria-pressed={view.live} onClick={() => updateView({ live: !view.live })}>
          <i aria-hidden="true" className={view.live ? 'beat' : undefined} /> {t.live}
        </button>
      </div>
      <Histogram query={query} span={view.span} live={view.live} onChoose={({ from, to }) => updateView({ from: formatIso(from), to: formatIso(to) })} selectedFrom={view.from} />
      {view.from && view.to && (
        <p>
          {t.between(formatTime(new Date(view.from)), formatTime(new Date(view.to)))}{' '}
          <button type="button" onClick={() => updateView({ from: undefined, to: undefined })}>
            {t.wholeTime}
          </button>
        </p>
      )}
      <Reasons query={`${query} ${range}`} onChoose={(reason) => updateView({ q: `${view.q} reason:${reason}`.trim() })} live={view.live} />
      <EventTable q={`${query} ${range}`} live={view.live} />
    </>
  )
}

interface BucketCounts extends Bucket {
  warnings: number
  others: number
}

function useNow(intervalMs: number, isRunning: boolean): number {
  const [now, setNow] = useState(() => Date.now() / 1000)
  useEffect(() => {
    if (!isRunning) return
    const timer = setInterval(() => setNow(Date.now() / 1000), intervalMs)
    return () => clearInterval(timer)
  }, [intervalMs, isRunning])
  return now
}

/** Event counts of the histogram's buckets. Completed buckets are requested once. */
function useCounts(query: string, span: Span, live: boolean) {
  const now = useNow(5_000, live)
  const [completed] = useState(() => new Map<string, BucketCounts>())
  const buckets = splitSpan(span, now)
  const key = (bucket: Bucket) => `${query} ${bucketQuery(bucket)}`
  return usePolledQuery(
    ['histogram', query, span, buckets[0]!.from],
    async (signal) => {
      const missing = buckets.filter((bucket) => !completed.has(key(bucket)))
      const countEvents = async (bucket: Bucket): Promise<BucketCounts> => {
        const { total, facets } = await countObjects(key(bucket), ['type'], signal)
        const warnings = facets.type?.find(({ value }) => value === 'Warning')?.count ?? 0
        const counts = { ...bucket, warnings, others: total - warnings }
        if (bucket.isComplete) completed.set(key(bucket), counts)
        return counts
      }
      const counts = await mapConcurrently(missing, MAX_CONCURRENT_REQUESTS, countEvents)
      return buckets.map((bucket) => completed.get(key(bucket)) ?? counts.find(({ from }) => from === bucket.from) ?? { ...bucket, warnings: 0, others: 0 })
    },
    live ? 5_000 : false,
  )
}

const WIDTH = 900
const HEIGHT = 112

function Histogram({ query, span, live, onChoose, selectedFrom }: { query: string; span: Span; live: boolean; onChoose: (bucket: Bucket) => void; selectedFrom: string | undefined }) {
  const t = useTextOf(fleetText)
  const commonText = useTextOf(queryText)
  const counts = useCounts(query, span, live)
  return (
    <QueryResult query={counts}>
      {(bars) => {
        const max = Math.max(1, ...bars.map(({ warnings, others }) => warnings + others))
        const sum = (severity: 'warnings' | 'others') => bars.reduce((all, bar) => all + bar[severity], 0)
        const width = WIDTH / bars.length
        const barHeight = (count: number) => (count / max) * HEIGHT
        const time = (bar: Bucket) => formatTime(new Date(bar.from * 1000))
        return (
          <figure className="histogram">
            <figcaption>
              <i className="others" aria-hidden="true" /> {t.others} <i className="warnings" aria-hidden="true" /> {t.warnings}
            </figcaption>
            <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={t.histogram(sum('warnings'), sum('others'))}>
              {bars.map((bar, nth) => (
                <g key={bar.from} className={selectedFrom === formatIso(bar.from) ? 'chosen' : undefined} onClick={() => onChoose(bar)}>
                  <title>{t.bucket(time(bar), bar.warnings, bar.others)}</title>
                  <rect className="room" x={nth * width} y={0} width={width} height={HEIGHT} />
                  <rect className="others" x={nth * width + 1} y={HEIGHT - barHeight(bar.others)} width={width - 2} height={barHeight(bar.others)} />
                  <rect className="warnings" x={nth * width + 1} y={HEIGHT - barHeight(bar.others) - barHeight(bar.warnings)} width={width - 2} height={barHeight(bar.warnings)} />
                </g>
              ))}
            </svg>
            <p className="ends">
              <span>{time(bars[0]!)}</span>
              <span>{time(bars.at(-1)!)}</span>
            </p>
            <details>
              <summary>{commonText.asTable}</summary>
              <Table label={t.histogram(sum('warnings'), sum('others'))} headers={t.histogramHeaders}>
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

function Reasons({ query, onChoose, live }: { query: string; onChoose: (reason: string) => void; live: boolean }) {
  const t = useTextOf(fleetText)
  const reasons = usePolledQuery(['reasons', query], (signal) => countObjects(query, ['reason'], signal), live ? 10_000 : false)
  const values = reasons.data?.facets.reason ?? []
  const skipped = reasons.data?.skipped ?? []
  return (
    <>
      <SkippedClusters skipped={skipped} />
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

/** Table of the newest events that match a query. */
export function EventTable({ q, live, limit = MAX_EVENTS }: { q: string; live: boolean; limit?: number }) {
  const t = useTextOf(fleetText)
  const events = usePolledQuery(
    ['events', q, limit],
    async (signal) => {
      const [events, count] = await Promise.all([queryObjects<KubeEvent>(`${q} sort:-last`, limit, signal), countObjects(q, [], signal)])
      return { events: events.sort(newestFirst), total: count.total }
    },
    live ? 5_000 : false,
  )
  return (
    <QueryResult query={events}>
      {({ events, total }) =>
        events.length === 0 ? (
          <p className="empty">{t.noEvents}</p>
        ) : (
          <>
            <p className="notice">
              {events.length < total && `${t.firstEvents(events.length, total)} `}
              <Link href={searchAddress({ q })}>{t.asQuery}</Link>
            </p>
            <Table label={t.events} headers={t.eventHeaders}>
              {events.map((event) => (
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
  const involved = involvedObjectOf(event) ?? {}
  const address = involvedAddress(cluster, involved)
  const isAboutCluster = isKind(involved, 'cluster.karmada.io', 'Cluster') && involved.name !== undefined
  const involvedName = `${involved.kind ?? ''} ${involved.namespace ? `${involved.namespace}/` : ''}${involved.name ?? ''}`.trim()
  return (
    <tr>
      <td title={lastOccurrence(event)}>{formatAgeSince(lastOccurrence(event))}</td>
      <td>
        <ClusterLink name={cluster} />
      </td>
      <td>
        <Pill state={event.type} tone={event.type === 'Warning' ? 'warn' : 'idle'} />
      </td>
      <th scope="row">
        <Link href={objectAddress({ cluster, apiVersion: 'v1', resource: 'events', namespace, name })}>{event.reason}</Link>
      </th>
      <td>
        {isAboutCluster ? (
          <Link href={clusterAddress(involved.name ?? '')}>
            {involved.kind} <ClusterName name={involved.name ?? ''} />
          </Link>
        ) : address === undefined ? (
          involvedName
        ) : (
          <Link href={address}>{involvedName}</Link>
        )}
      </td>
      <td className="number">{event.count ?? 1}</td>
      <td>{event.message ?? (event.note as string | undefined)}</td>
    </tr>
  )
}
