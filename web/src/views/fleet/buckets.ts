// Buckets of the event histogram. Pure: the current time is an argument.

export const SPANS = ['15m', '1h', '6h', '24h'] as const
export type Span = (typeof SPANS)[number]

const SECONDS: Record<Span, number> = { '15m': 900, '1h': 3_600, '6h': 21_600, '24h': 86_400 }
/** Number of bars. */
const BARS = 30

export interface Bucket {
  /** Unix seconds; the end is exclusive. */
  from: number
  to: number
  /** No further events are expected in it, except for late ones. */
  over: boolean
}

export function isSpan(text: string | undefined): text is Span {
  return (SPANS as readonly string[]).includes(text ?? '')
}

/** Buckets of a range that ends now; their boundaries are stable over time. */
export function buckets(span: Span, now: number): Bucket[] {
  const width = SECONDS[span] / BARS
  const last = Math.floor(now / width) * width
  return Array.from({ length: BARS }, (_, nth) => {
    const from = last - (BARS - 1 - nth) * width
    return { from, to: from + width, over: from + 2 * width <= now }
  })
}

export const iso = (seconds: number) => new Date(seconds * 1000).toISOString().replace('.000Z', 'Z')

/** The query for the events of a bucket; the language's ranges are inclusive. */
export function during({ from, to }: { from: number; to: number }): string {
  return `last:${iso(from)}..${iso(to - 1)}`
}
