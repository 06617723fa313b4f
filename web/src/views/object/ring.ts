// The newest log lines in the order of their time, within limits of count and size. Pure.

export interface LogLine {
  /** Sequence number by arrival. */
  nth: number
  time: string | undefined
  text: string
  /** It was truncated. */
  cut: boolean
  source: LogSource
}

export interface LogSource {
  cluster: string
  namespace: string
  pod: string
  container: string
}

export const MOST_LINES = 20_000
/** Characters of all lines, at most two bytes each. */
export const MOST_CHARACTERS = 8 << 20
/** Overhead of a line in bytes. */
const OF_EACH = 64
/** Lines are sorted and dropped once the limits are exceeded by this share, so that the cost per line stays constant. */
const SLACK = 1 / 8

interface Kept {
  line: LogLine
  /** Time in a form whose text order is the order of time. */
  key: string
}

export class Ring {
  private lines: Kept[] = []
  private characters = 0
  /** The lines are within the limits, and sorted. */
  private settled = true
  /** No line has arrived out of order since the lines were sorted. */
  private ordered = true
  /** Key of the last line of each source: a line without a time follows it. */
  private readonly last = new WeakMap<LogSource, string>()
  /** Total number of received lines. */
  total = 0

  constructor(
    private readonly mostLines = MOST_LINES,
    private readonly mostCharacters = MOST_CHARACTERS,
  ) {}

  /** Adds a line. Streams deliver the backlog pod by pod, so lines arrive out of order. */
  push(line: Omit<LogLine, 'nth'>): void {
    const key = line.time === undefined ? (this.last.get(line.source) ?? '') : timeKey(line.time)
    this.last.set(line.source, key)
    this.ordered &&= key >= (this.lines.at(-1)?.key ?? '')
    this.lines.push({ line: { ...line, nth: this.total++ }, key })
    this.characters += line.text.length + OF_EACH
    this.settled = false
    if (this.lines.length > this.mostLines * (1 + SLACK) || this.characters > this.mostCharacters * (1 + SLACK)) this.settle()
  }

  /** Sorts the lines by time, those of one time by arrival, and drops the oldest beyond the limits. */
  private settle(): Kept[] {
    if (this.settled) return this.lines
    this.settled = true
    if (!this.ordered) this.lines.sort(order)
    this.ordered = true
    let first = 0
    while (this.lines.length - first > 1 && (this.lines.length - first > this.mostLines || this.characters > this.mostCharacters)) {
      this.characters -= (this.lines[first]?.line.text.length ?? 0) + OF_EACH
      first++
    }
    if (first > 0) this.lines = this.lines.slice(first)
    return this.lines
  }

  get length(): number {
    return this.settle().length
  }

  /** Number of dropped lines. */
  get left(): number {
    return this.total - this.length
  }

  at(place: number): LogLine | undefined {
    return this.settle()[place]?.line
  }

  /** Index of a line; -1: dropped. */
  placeOf(line: LogLine): number {
    const lines = this.settle()
    const wanted = { line, key: line.time === undefined ? (this.keyOfUntimed(line) ?? '') : timeKey(line.time) }
    let [from, to] = [0, lines.length]
    while (from < to) {
      const middle = (from + to) >>> 1
      const kept = lines[middle]
      if (kept && order(kept, wanted) < 0) from = middle + 1
      else to = middle
    }
    return lines[from]?.line.nth === line.nth ? from : -1
  }

  private keyOfUntimed({ nth }: LogLine): string | undefined {
    return this.lines.find(({ line }) => line.nth === nth)?.key
  }

  findLast(is: (line: LogLine) => boolean): LogLine | undefined {
    return this.settle().findLast(({ line }) => is(line))?.line
  }
}

const order = (one: Kept, other: Kept) => (one.key < other.key ? -1 : one.key > other.key ? 1 : one.line.nth - other.line.nth)

/** An RFC 3339 time with nine decimals in UTC: times with fewer decimals or an offset are not in the order of their text. */
export function timeKey(time: string): string {
  const [, seconds, decimals = '', offset] = /^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)$/.exec(time) ?? []
  if (seconds === undefined) return time
  if (offset === 'Z') return decimals.length === 9 ? time : `${seconds}.${decimals.padEnd(9, '0')}Z`
  return `${new Date(`${seconds}${offset}`).toISOString().slice(0, 19)}.${decimals.padEnd(9, '0')}Z`
}

/** Identifier of a line in the address: time and source. */
export function nameOf({ time, source: { cluster, namespace, pod, container } }: LogLine): string {
  return [time ?? '', cluster, namespace, pod, container].join(' ')
}

/** The time before an identified line, to request it again. */
export function before(name: string): string | undefined {
  const time = Date.parse(name.split(' ')[0] ?? '')
  return Number.isNaN(time) ? undefined : new Date(time - 5_000).toISOString()
}

/** Unique key of a container's log. */
export const keyOf = ({ cluster, namespace, pod, container }: LogSource) => `${cluster}/${namespace}/${pod}/${container}`
