// Times of a query: the range of its histogram, and the moment that it is about. Pure: the current time is an argument.
import { named, ofThePast, replaced, timeOf } from '../../api/query'

/** Bars of the histogram. */
export const BARS = 30
/** Ranges that the time control offers, and their seconds. */
export const SPANS = { '15m': 900, '1h': 3_600, '6h': 21_600, '24h': 86_400 } as const
export type Span = keyof typeof SPANS
const DEFAULT: Span = '24h'

/** Unix seconds; the end is exclusive. */
export interface Range {
  from: number
  to: number
}

/** Events are counted by their last occurrence, all other objects by their last change. */
export type TimeField = 'changed' | 'last'
const TIMES = ['changed', 'last', 'at', 'during']

export function fieldOf(q: string): TimeField {
  const kinds = named(q, 'kind').map((kind) => kind.toLowerCase())
  return kinds.length > 0 && kinds.every((kind) => /^(ev|events?)$/.test(kind)) ? 'last' : 'changed'
}

const UNITS: Record<string, number> = { s: 1, m: 60, h: 3_600, d: 86_400, w: 604_800 }

function duration(text: string): number | undefined {
  const [, count, unit] = /^(\d+)([smhdw])$/.exec(text) ?? []
  return count === undefined || unit === undefined ? undefined : Number(count) * (UNITS[unit] ?? 0)
}

/** A time of the query language in Unix seconds: `now-2h`, RFC 3339 (UTC without a zone), or the last `10:05`. */
export function secondsOf(time: string, now: number): number | undefined {
  const text = time.replace(/^"|"$/g, '')
  if (text === '' || text === 'now') return now
  if (text.startsWith('now-')) {
    const before = duration(text.slice('now-'.length))
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

/** The moment that a query of the past is about: of a range its end. */
export function momentOf(q: string, now: number): number | undefined {
  if (!ofThePast(q)) return undefined
  const [begin = '', end = begin] = (timeOf(q) ?? '').split('..')
  return secondsOf(end, now)
}

/** The span that the query names, such as `changed:<1h`. */
export function spanOf(q: string): Span | undefined {
  const [value] = named(q, fieldOf(q))
  return (Object.keys(SPANS) as Span[]).find((span) => value === `<${span}`)
}

/** The range of the histogram: the one that the query names, or the last day. */
export function rangeOf(q: string, now: number): Range {
  const [value = ''] = [...named(q, fieldOf(q)), ...named(q, 'during')]
  const [begin, end] = value.split('..')
  if (begin !== undefined && end !== undefined) {
    const [from, to] = [secondsOf(begin, now), secondsOf(end, now)]
    if (from !== undefined && to !== undefined && to > from) return { from, to: to + 1 }
  }
  const width = SPANS[spanOf(q) ?? DEFAULT] / BARS
  // Boundaries are stable over time, so that bars of the past are not counted again.
  const to = (Math.floor(now / width) + 1) * width
  return { from: to - BARS * width, to }
}

export function bucketsOf({ from, to }: Range): Range[] {
  const width = (to - from) / BARS
  return Array.from({ length: BARS }, (_, nth) => ({ from: from + nth * width, to: from + (nth + 1) * width }))
}

const iso = (seconds: number) => new Date(Math.round(seconds) * 1000).toISOString().replace('.000Z', 'Z')

/** The query for one bar; the language's ranges are inclusive. */
export function within(q: string, { from, to }: Range): string {
  return replaced(q, TIMES, `${fieldOf(q)}:${iso(from)}..${iso(to - 1)}`)
}

/** The query for a selected range: Events that occurred in it, or objects that changed last in it. */
export function during(q: string, { from, to }: Range): string {
  const field = fieldOf(q) === 'last' ? 'during' : 'changed'
  return replaced(q, TIMES, `${field}:${iso(from)}..${iso(to - 1)}`)
}

/** The query for the last minutes or hours; undefined: for any time. */
export function lately(q: string, span: Span | undefined): string {
  return replaced(q, TIMES, span && `${fieldOf(q)}:<${span}`)
}

/** The query about another time. */
export function asOf(q: string, time: string): string {
  const text = time.trim()
  return replaced(q, TIMES, text === '' ? undefined : `at:${/^[\w.:+-]+$/.test(text) ? text : `"${text.replaceAll('"', '')}"`}`)
}

/** The bars from one index to another, in any order, as a range. */
export function spanned(buckets: readonly Range[], one: number, other: number): Range | undefined {
  const [first, last] = [buckets[Math.min(one, other)], buckets[Math.max(one, other)]]
  return first && last && { from: first.from, to: last.to }
}
