// Times of the events' histogram. Pure: what is now is an argument.

export const SPANS = ['15m', '1h', '6h', '24h'] as const
export type Span = (typeof SPANS)[number]

const SECONDS: Record<Span, number> = { '15m': 900, '1h': 3_600, '6h': 21_600, '24h': 86_400 }
/** Bars of a histogram. */
const BARS = 30

export interface Bucket {
  /** Unix seconds: from, and to but not with it. */
  from: number
  to: number
  /** No event falls into it any more, but for those that come late. */
  over: boolean
}

export function isSpan(text: string | undefined): text is Span {
  return (SPANS as readonly string[]).includes(text ?? '')
}

/** The buckets of a span that ends now; their borders stay where they are while time passes. */
export function buckets(span: Span, now: number): Bucket[] {
  const width = SECONDS[span] / BARS
  const last = Math.floor(now / width) * width
  return Array.from({ length: BARS }, (_, nth) => {
    const from = last - (BARS - 1 - nth) * width
    return { from, to: from + width, over: from + 2 * width <= now }
  })
}

export const iso = (seconds: number) => new Date(seconds * 1000).toISOString().replace('.000Z', 'Z')

/** The query for the events of a time; both ends of a range belong to it. */
export function during({ from, to }: { from: number; to: number }): string {
  return `last:${iso(from)}..${iso(to - 1)}`
}
