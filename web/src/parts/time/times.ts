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

/** Events of the core group and of `events.k8s.io`, with or without group and version. */
const EVENT_KIND = /^(ev|events?)(\.v\d\w*)?(\.events\.k8s\.io)?$/

/** The field by which the hits of a query are counted. */
export function timeFieldOf(q: string): TimeField {
  const kinds = fieldValues(q, 'kind').map((kind) => kind.toLowerCase())
  return kinds.length > 0 && kinds.every((kind) => EVENT_KIND.test(kind)) ? 'last' : 'changed'
}

const UNIT_SECONDS: Record<string, number> = { ms: 0.001, s: 1, m: 60, h: 3_600, d: 86_400, w: 604_800 }
/** Words of the query language for a duration before now, in seconds. */
const WORD_SECONDS = new Map([['hour', 3_600], ['day', 86_400], ['week', 604_800], ['month', 30 * 86_400], ['year', 365 * 86_400]])

/** Seconds of a duration such as `90s` or `2h30m`; undefined for other texts. */
function parseDurationSeconds(text: string): number | undefined {
  if (!/^(\d+(\.\d+)?(ms|[smhdw]))+$/.test(text)) return undefined
  return [...text.matchAll(/([\d.]+)([a-z]+)/g)].reduce((sum, [, amount, unit = '']) => sum + Number(amount) * (UNIT_SECONDS[unit] ?? 0), 0)
}

/**
 * Unix seconds of a time in the query language: `now-2h`, `2h` or `day` before now, RFC 3339 (UTC without a zone), or `10:05`, which is the last one.
 * Undefined for other texts.
 */
export function parseTimeSeconds(time: string, now: number): number | undefined {
  const seconds = readTimeSeconds(time.replace(/^"|"$/g, ''), now)
  // An hour or a duration can be out of range, as in `25:00`.
  return seconds === undefined || Number.isNaN(new Date(seconds * 1000).getTime()) ? undefined : seconds
}

function readTimeSeconds(text: string, now: number): number | undefined {
  if (text === '' || text === 'now') return now
  const before = WORD_SECONDS.get(text) ?? parseDurationSeconds(text.replace(/^now-/, ''))
  if (before !== undefined) return now - before
  if (/^\d\d:\d\d(:\d\d)?$/.test(text)) {
    const today = Date.parse(`${new Date(now * 1000).toISOString().slice(0, 10)}T${text}Z`) / 1000
    return today > now ? today - SPANS['24h'] : today
  }
  // Date.parse accepts many other texts, in the browser's time zone.
  const [, date, clock = '00:00', zone = 'Z'] = /^(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d(?:\.\d+)?)?)(Z|[+-]\d\d:\d\d)?)?$/.exec(text) ?? []
  return date === undefined ? undefined : Date.parse(`${date}T${clock}${zone}`) / 1000
}

/** The ends of the query's `during:`, which may be empty; undefined for other queries. */
export function pastRangeOf(q: string): [begin: string, end: string] | undefined {
  const [begin, end] = (fieldValues(q, 'during')[0] ?? '').split('..')
  return begin !== undefined && end !== undefined ? [begin, end] : undefined
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

/** The query for one bar; the language's ranges are inclusive. With `during:` it counts the objects that match at any time of the bar. */
export function queryForBucket(q: string, { from, to }: Range): string {
  const field = timeFieldOf(q)
  return replaceTerms(q, TIME_FIELDS, `${field === 'changed' && pastRangeOf(q) ? 'during' : field}:${formatIso(from)}..${formatIso(to - 1)}`)
}

/** The query for a selected range: Events that occurred in it, objects that changed last in it or, if the query has a range of the past, objects that match in it. */
export function queryForRange(q: string, { from, to }: Range): string {
  const field = timeFieldOf(q) === 'last' || pastRangeOf(q) ? 'during' : 'changed'
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

/** The query for a range whose ends are typed; an empty end is now. Undefined if they are no times, or in the wrong order. */
export function queryForTypedRange(q: string, begin: string, end: string, now: number): string | undefined {
  const [from, to] = [begin.trim() === '' ? undefined : parseTimeSeconds(begin.trim(), now), parseTimeSeconds(end.trim(), now)]
  return from === undefined || to === undefined || to <= from ? undefined : queryForRange(q, { from, to: to + 1 })
}

/** The ends of the range in a query; undefined for other queries. */
export function typedRangeOf(q: string): [begin: string, end: string] | undefined {
  const [begin, end] = (fieldValues(q, timeFieldOf(q))[0] ?? '').split('..')
  return begin !== undefined && end !== undefined ? [begin, end] : pastRangeOf(q)
}

/** The range from one bar to another, in any order. */
export function joinBuckets(buckets: readonly Range[], from: number, to: number): Range | undefined {
  const [first, last] = [buckets[Math.min(from, to)], buckets[Math.max(from, to)]]
  return first && last && { from: first.from, to: last.to }
}
