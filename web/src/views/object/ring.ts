// The newest lines of logs: as many as fit, so that a page lives however much is told. Pure.

export interface LogLine {
  /** Counts all lines that came. */
  nth: number
  time: string | undefined
  text: string
  /** It was longer. */
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
/** Characters of all lines: two bytes each at most. */
export const MOST_CHARACTERS = 8 << 20
/** What a line takes beside its text. */
const OF_EACH = 64

export class Ring {
  private lines: LogLine[] = []
  /** Lines before this place have left. */
  private first = 0
  private characters = 0
  /** Lines that came. */
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
    // What has left is let go once it is as much as what is there: each line is moved twice at most.
    if (this.first > 1_000 && this.first * 2 > this.lines.length) {
      this.lines = this.lines.slice(this.first)
      this.first = 0
    }
  }

  get length(): number {
    return this.lines.length - this.first
  }

  /** How many have left. */
  get left(): number {
    return this.total - this.length
  }

  at(place: number): LogLine | undefined {
    return this.lines[this.first + place]
  }

  /** The place of a line by its count; below 0: it has left. */
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

/** A line's name in the address: when and where it was said. */
export function nameOf({ time, source: { cluster, namespace, pod, container } }: LogLine): string {
  return [time ?? '', cluster, namespace, pod, container].join(' ')
}

/** The moment before a named line, from which on it is asked for again. */
export function before(name: string): string | undefined {
  const time = Date.parse(name.split(' ')[0] ?? '')
  return Number.isNaN(time) ? undefined : new Date(time - 5_000).toISOString()
}

/** A container's log, told apart from all others. */
export const keyOf = ({ cluster, namespace, pod, container }: LogSource) => `${cluster}/${namespace}/${pod}/${container}`
