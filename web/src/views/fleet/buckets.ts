// Buckets of the event histogram. `now` is the current Unix time in seconds. Has no side effects.

export const SPANS = ['15m', '1h', '6h', '24h'] as const
export type Span = (typeof SPANS)[number]

const SPAN_SECONDS: Record<Span, number> = { '15m': 900, '1h': 3_600, '6h': 21_600, '24h': 86_400 }
/** Number of bars. */
const BAR_COUNT = 30

export interface Bucket {
  /** Unix seconds; the end is exclusive. */
  from: number
  to: number
  /** True if the bucket has ended long enough ago that no further events are expected. */
  isComplete: boolean
}

export function isSpan(text: string | undefined): text is Span {
  return (SPANS as readonly string[]).includes(text ?? '')
}

/** Buckets of the last time span. Their boundaries are multiples of their width, so that they stay the same over time. */
export function splitSpan(span: Span, now: number): Bucket[] {
  const width = SPAN_SECONDS[span] / BAR_COUNT
  const last = Math.floor(now / width) * width
  return Array.from({ length: BAR_COUNT }, (_, nth) => {
    const from = last - (BAR_COUNT - 1 - nth) * width
    return { from, to: from + width, isComplete: from + 2 * width <= now }
  })
}

export const formatIso = (seconds: number) => new Date(seconds * 1000).toISOString().replace('.000Z', 'Z')

/** The query for the events of a bucket; the language's ranges are inclusive. */
export function bucketQuery({ from, to }: { from: number; to: number }): string {
  return `last:${formatIso(from)}..${formatIso(to - 1)}`
}
