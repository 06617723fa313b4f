// The lines of a container's log before and after one line. Has no side effects.
import { lineIdOf, timeKey, type LogLine, type LogSource } from './logBuffer'

/** Number of lines before and after the line. */
export const CONTEXT_LINES = 20
/** Start times of requests, in milliseconds before the line. The next one is used if there are fewer lines since. */
export const CONTEXT_SPANS_MS = [10_000, 600_000, 21_600_000] as const

export type ContextLine = Pick<LogLine, 'time' | 'text'>

/** The time and the source in the identifier of a line; undefined if it has no time. */
export function parseLineId(lineId: string): { time: string; source: LogSource } | undefined {
  const [time = '', cluster = '', namespace = '', pod = '', container = ''] = lineId.split(' ')
  return Number.isNaN(Date.parse(time)) || container === '' ? undefined : { time, source: { cluster, namespace, pod, container } }
}

/** Collects the lines around one line of a log, whose lines arrive in their order. */
export class ContextWindow {
  readonly before: ContextLine[] = []
  line: ContextLine | undefined
  readonly after: ContextLine[] = []
  private readonly key: string

  /** `time`: the time of the line. Of several lines with this time, the first one is taken. */
  constructor(time: string) {
    this.key = timeKey(time)
  }

  /** Adds the next line of the log. Returns true if no further line is needed. */
  push(line: ContextLine): boolean {
    if (this.line !== undefined) this.after.push(line)
    else if (line.time !== undefined && timeKey(line.time) === this.key) this.line = line
    else if (line.time !== undefined && timeKey(line.time) > this.key) return true
    else if (this.before.push(line) > CONTEXT_LINES) this.before.shift()
    return this.after.length >= CONTEXT_LINES
  }
}

/** Identity of a line within its log. */
export const contextKey = ({ time, text }: ContextLine) => `${time ?? ''} ${text}`

/** Keys of the lines of the same log as `lineId` that are in a buffer, and so match its filters. */
export function matchingKeys(lines: Iterable<LogLine>, lineId: string): ReadonlySet<string> {
  const suffix = lineId.slice(lineId.indexOf(' '))
  const keys = new Set<string>()
  for (const line of lines) if (lineIdOf(line).endsWith(suffix)) keys.add(contextKey(line))
  return keys
}
