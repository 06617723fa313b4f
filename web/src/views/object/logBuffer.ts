// Buffer of the newest log lines, sorted by time and limited in count and size. Has no side effects.

export interface LogLine {
  /** Sequence number in the order of arrival. */
  sequence: number
  time: string | undefined
  text: string
  /** True if the server truncated the text. */
  truncated: boolean
  source: LogSource
}

export interface LogSource {
  cluster: string
  namespace: string
  pod: string
  container: string
}

export const MAX_LINES = 20_000
/** Characters of all lines, at most two bytes each. */
export const MAX_CHARACTERS = 8 << 20
/** Overhead of a line in bytes. */
const LINE_OVERHEAD = 64
/** Fraction by which the limits may be exceeded before lines are sorted and dropped, so that the cost per line stays constant. */
const SLACK = 1 / 8

interface BufferedLine {
  line: LogLine
  /** Sort key: the time, in a form that sorts as text. */
  key: string
}

export class LogBuffer {
  private lines: BufferedLine[] = []
  private characters = 0
  /** The lines are within the limits, and sorted. */
  private normalized = true
  /** No line has arrived out of order since the lines were sorted. */
  private ordered = true
  /** Key of the last line of each source. A line without a time gets the same key, so that it stays behind that line. */
  private readonly last = new WeakMap<LogSource, string>()
  /** Total number of received lines. */
  total = 0

  constructor(
    private readonly maxLines = MAX_LINES,
    private readonly maxCharacters = MAX_CHARACTERS,
  ) {}

  /** Adds a line. Streams deliver the backlog pod by pod, so lines arrive out of order. */
  push(line: Omit<LogLine, 'sequence'>): void {
    const key = line.time === undefined ? (this.last.get(line.source) ?? '') : timeKey(line.time)
    this.last.set(line.source, key)
    this.ordered &&= key >= (this.lines.at(-1)?.key ?? '')
    this.lines.push({ line: { ...line, sequence: this.total++ }, key })
    this.characters += line.text.length + LINE_OVERHEAD
    this.normalized = false
    if (this.lines.length > this.maxLines * (1 + SLACK) || this.characters > this.maxCharacters * (1 + SLACK)) this.normalize()
  }

  /** Sorts the lines by time, lines with the same time by arrival, and drops the oldest lines beyond the limits. */
  private normalize(): BufferedLine[] {
    if (this.normalized) return this.lines
    this.normalized = true
    if (!this.ordered) this.lines.sort(order)
    this.ordered = true
    let first = 0
    while (this.lines.length - first > 1 && (this.lines.length - first > this.maxLines || this.characters > this.maxCharacters)) {
      this.characters -= (this.lines[first]?.line.text.length ?? 0) + LINE_OVERHEAD
      first++
    }
    if (first > 0) this.lines = this.lines.slice(first)
    return this.lines
  }

  get length(): number {
    return this.normalize().length
  }

  /** Number of dropped lines. */
  get dropped(): number {
    return this.total - this.length
  }

  at(index: number): LogLine | undefined {
    return this.normalize()[index]?.line
  }

  /** Index of a line; -1 if it was dropped. */
  indexOf(line: LogLine): number {
    const lines = this.normalize()
    const target = { line, key: line.time === undefined ? (this.keyWithoutTime(line) ?? '') : timeKey(line.time) }
    let [from, to] = [0, lines.length]
    while (from < to) {
      const middle = (from + to) >>> 1
      const middleLine = lines[middle]
      if (middleLine && order(middleLine, target) < 0) from = middle + 1
      else to = middle
    }
    return lines[from]?.line.sequence === line.sequence ? from : -1
  }

  private keyWithoutTime({ sequence }: LogLine): string | undefined {
    return this.lines.find(({ line }) => line.sequence === sequence)?.key
  }

  findLast(predicate: (line: LogLine) => boolean): LogLine | undefined {
    return this.normalize().findLast(({ line }) => predicate(line))?.line
  }
}

/** The newest lines that have arrived while a view is paused, in the order of arrival and with the limits of a buffer. */
export class PausedLines {
  private lines: Omit<LogLine, 'sequence'>[] = []
  private characters = 0
  /** Number of lines that have arrived. */
  count = 0

  constructor(
    private readonly maxLines = MAX_LINES,
    private readonly maxCharacters = MAX_CHARACTERS,
  ) {}

  push(line: Omit<LogLine, 'sequence'>): void {
    this.count++
    this.lines.push(line)
    this.characters += line.text.length + LINE_OVERHEAD
    if (this.lines.length > this.maxLines * (1 + SLACK) || this.characters > this.maxCharacters * (1 + SLACK)) this.dropOldest()
  }

  private dropOldest(): void {
    let first = 0
    while (this.lines.length - first > 1 && (this.lines.length - first > this.maxLines || this.characters > this.maxCharacters)) {
      this.characters -= (this.lines[first]?.text.length ?? 0) + LINE_OVERHEAD
      first++
    }
    this.lines = this.lines.slice(first)
  }

  /** Adds the lines to a buffer, and removes them. The buffer counts those that were dropped here as dropped. */
  moveTo(buffer: LogBuffer): void {
    buffer.total += this.count - this.lines.length
    this.lines.forEach((line) => buffer.push(line))
    this.lines = []
    this.characters = 0
    this.count = 0
  }
}

const order = (left: BufferedLine, right: BufferedLine) => (left.key < right.key ? -1 : left.key > right.key ? 1 : left.line.sequence - right.line.sequence)

/** An RFC 3339 time in UTC with nine decimals, so that times sort as text. */
export function timeKey(time: string): string {
  const [, seconds, decimals = '', offset] = /^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)$/.exec(time) ?? []
  if (seconds === undefined) return time
  if (offset === 'Z') return decimals.length === 9 ? time : `${seconds}.${decimals.padEnd(9, '0')}Z`
  return `${new Date(`${seconds}${offset}`).toISOString().slice(0, 19)}.${decimals.padEnd(9, '0')}Z`
}

/** Identifier of a line in the page's address: time and source. */
export function lineIdOf({ time, source: { cluster, namespace, pod, container } }: LogLine): string {
  return [time ?? '', cluster, namespace, pod, container].join(' ')
}

/** Five seconds before the line with this identifier: the start time of a request that returns the line. Undefined without a time. */
export function timeBefore(lineId: string): string | undefined {
  const time = Date.parse(lineId.split(' ')[0] ?? '')
  return Number.isNaN(time) ? undefined : new Date(time - 5_000).toISOString()
}

/** Unique key of a container's log. */
export const keyOf = ({ cluster, namespace, pod, container }: LogSource) => `${cluster}/${namespace}/${pod}/${container}`
