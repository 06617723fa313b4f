// The newest log lines, within limits of count and size. Pure.

export interface LogLine {
  /** Sequence number of the line. */
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

export class Ring {
  private lines: LogLine[] = []
  /** Start of the retained lines in the array. */
  private first = 0
  private characters = 0
  /** Total number of received lines. */
  total = 0

  constructor(
    private readonly mostLines = MOST_LINES,
    private readonly mostCharacters = MOST_CHARACTERS,
  ) {}

  push(line: Omit<LogLine, 'nth'>): void {
    this.lines.push({ ...line, nth: this.total++ })
    this.characters += line.text.length + OF_EACH
    while (this.length > 1 && (this.length > this.mostLines || this.characters > this.mostCharacters)) {
      this.characters -= (this.lines[this.first]?.text.length ?? 0) + OF_EACH
      this.first++
    }
    // Dropped lines are released when they are half of the array, so each line is moved at most twice.
    if (this.first > 1_000 && this.first * 2 > this.lines.length) {
      this.lines = this.lines.slice(this.first)
      this.first = 0
    }
  }

  get length(): number {
    return this.lines.length - this.first
  }

  /** Number of dropped lines. */
  get left(): number {
    return this.total - this.length
  }

  at(place: number): LogLine | undefined {
    return this.lines[this.first + place]
  }

  /** Index of a line by its sequence number; negative: dropped. */
  placeOf(nth: number): number {
    return nth - this.left
  }

  findLast(is: (line: LogLine) => boolean): LogLine | undefined {
    for (let place = this.lines.length - 1; place >= this.first; place--) {
      const line = this.lines[place]
      if (line && is(line)) return line
    }
    return undefined
  }
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
