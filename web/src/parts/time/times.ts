// Times of a query: the range of its histogram, and the moment it refers to. `now` is the current Unix time in seconds.
// Has no side effects.
import { fieldValues, isAboutPast, replaceTerms, timeOf } from '../../api/query'

/** Number of bars of the histogram. */
export const BAR_COUNT = 30
/** Time spans that the time control offers, in seconds. */
export const SPANS = { '15m': 900, '1h': 3_600, '6h': 21_600, '24h': 86_400 } as const
export type Span = keyof typeof SPANS
const DEFAULT_SPAN: Span = '24h'

/** Unix seconds; the end is exclusive. */
export interface Range {
  from: number
  to: number
}

/** Fields by which hits are counted: Events by their last occurrence, other objects by their last change. */
export type TimeField = 'changed' | 'last'
const TIME_FIELDS = ['changed', 'last', 'at', 'during']

/** The field by which the hits of a query are counted. */
export function timeFieldOf(q: string): TimeField {
  const kinds = fieldValues(q, 'kind').map((kind) => kind.toLowerCase())
  return kinds.length > 0 && kinds.every((kind) => /^(ev|events?)$/.test(kind)) ? 'last' : 'changed'
}

const UNIT_SECONDS: Record<string, number> = { s: 1, m: 60, h: 3_600, d: 86_400, w: 604_800 }

function parseDurationSeconds(text: string): number | undefined {
  const [, count, unit] = /^(\d+)([smhdw])$/.exec(text) ?? []
  return count === undefined || unit === undefined ? undefined : Number(count) * (UNIT_SECONDS[unit] ?? 0)
}

/** Unix seconds of a time in the query language: `now-2h`, RFC 3339 (UTC without a zone), or `10:05`, which is the last one. */
export function parseTimeSeconds(time: string, now: number): number | undefined {
  const text = time.replace(/^"|"$/g, '')
  if (text === '' || text === 'now') return now
  if (text.startsWith('now-')) {
    const before = parseDurationSeconds(text.slice('now-'.length))
    return before === undefined ? undefined : now - before
  }
  if (/^\d\d:\d\d(:\d\d)?$/.test(text)) {
    const today = Date.parse(`${new Date(now * 1000).toISOString().slice(0, 10)}T${text}Z`) / 1000
    return today > now ? today - SPANS['24h'] : today
  }
  const zoned = /T.*(Z|[+-]\d\d:\d\d)$/.test(text) || !text.includes('T') ? text : `${text}Z`
  const at = Date.parse(zoned) / 1000
  return Number.isNaN(at) ? undefined : at
}

/** Unix seconds of the time that a query about the past refers to; the end of a range. Undefined for other queries. */
export function momentOf(q: string, now: number): number | undefined {
  if (!isAboutPast(q)) return undefined
  const [begin = '', end = begin] = (timeOf(q) ?? '').split('..')
  return parseTimeSeconds(end, now)
}

/** The time span in a query such as `changed:<1h`; undefined for other values. */
export function spanOf(q: string): Span | undefined {
  const [value] = fieldValues(q, timeFieldOf(q))
  return (Object.keys(SPANS) as Span[]).find((span) => value === `<${span}`)
}

/** The range of a query's histogram: its own range or span, or the last day. */
export function histogramRange(q: string, now: number): Range {
  const [value = ''] = [...fieldValues(q, timeFieldOf(q)), ...fieldValues(q, 'during')]
  const [begin, end] = value.split('..')
  if (begin !== undefined && end !== undefined) {
    const [from, to] = [parseTimeSeconds(begin, now), parseTimeSeconds(end, now)]
    if (from !== undefined && to !== undefined && to > from) return { from, to: to + 1 }
  }
  const seconds = SPANS[spanOf(q) ?? DEFAULT_SPAN] / BAR_COUNT
  // Multiples of the bar's width, so that past bars are not counted again.
  const to = (Math.floor(now / seconds) + 1) * seconds
  return { from: to - BAR_COUNT * seconds, to }
}

/** Splits a range into the bars of the histogram. */
export function splitRange({ from, to }: Range): Range[] {
  const width = (to - from) / BAR_COUNT
  return Array.from({ length: BAR_COUNT }, (_, nth) => ({ from: from + nth * width, to: from + (nth + 1) * width }))
}

const formatIso = (seconds: number) => new Date(Math.round(seconds) * 1000).toISOString().replace('.000Z', 'Z')

/** The query for one bar; the language's ranges are inclusive. */
export function queryForBucket(q: string, { from, to }: Range): string {
  return replaceTerms(q, TIME_FIELDS, `${timeFieldOf(q)}:${formatIso(from)}..${formatIso(to - 1)}`)
}

/** The query for a selected range: Events that occurred in it, or objects that changed last in it. */
export function queryForRange(q: string, { from, to }: Range): string {
  const field = timeFieldOf(q) === 'last' ? 'during' : 'changed'
  return replaceTerms(q, TIME_FIELDS, `${field}:${formatIso(from)}..${formatIso(to - 1)}`)
}

/** The query for a recent span; undefined: for any time. */
export function queryForSpan(q: string, span: Span | undefined): string {
  return replaceTerms(q, TIME_FIELDS, span && `${timeFieldOf(q)}:<${span}`)
}

/** The query about another time; an empty time removes it. */
export function queryAtTime(q: string, time: string): string {
  const text = time.trim()
  return replaceTerms(q, TIME_FIELDS, text === '' ? undefined : `at:${/^[\w.:+-]+$/.test(text) ? text : `"${text.replaceAll('"', '')}"`}`)
}

/** The range from one bar to another, in any order. */
export function joinBuckets(buckets: readonly Range[], from: number, to: number): Range | undefined {
  const [first, last] = [buckets[Math.min(from, to)], buckets[Math.max(from, to)]]
  return first && last && { from: first.from, to: last.to }
}
