// Log lines over time, by level. Pure.
import { levelOf } from './level'
import type { LogLine } from './ring'

export const BARS = 60

export interface Volume {
  /** Unix milliseconds. */
  from: number
  lines: number
  errors: number
  warnings: number
  /** The first line of the bar. */
  first: LogLine | undefined
}

interface Lines {
  length: number
  at: (place: number) => LogLine | undefined
}

interface Read {
  time: number
  level: ReturnType<typeof levelOf>
}

/** Lines are read once, since the strip is drawn again with each change. */
const known = new WeakMap<LogLine, Read>()

function read(line: LogLine): Read {
  const before = known.get(line)
  if (before) return before
  const made = { time: line.time === undefined ? NaN : Date.parse(line.time), level: levelOf(line.text) }
  known.set(line, made)
  return made
}

/** Bars of equal duration from the first to the last line, which are in the order of time; none without a duration. */
export function volumeOf(lines: Lines, bars = BARS): Volume[] {
  const all = Array.from({ length: lines.length }, (_, nth) => lines.at(nth)).filter((line) => line !== undefined)
  const timed = (line: LogLine | undefined) => line !== undefined && !Number.isNaN(read(line).time)
  const [begin, end] = [all.find(timed), all.findLast(timed)]
  if (!begin || !end) return []
  const from = read(begin).time
  const width = (read(end).time - from) / bars
  if (!(width > 0)) return []
  const found = Array.from({ length: bars }, (_, nth): Volume => ({ from: from + nth * width, lines: 0, errors: 0, warnings: 0, first: undefined }))
  let at = 0
  for (const line of all) {
    const { time, level } = read(line)
    // A line without a time follows the one before it.
    if (!Number.isNaN(time)) at = Math.min(bars - 1, Math.max(0, Math.floor((time - from) / width)))
    const bar = found[at]
    if (!bar) continue
    bar.lines++
    if (level === 'bad') bar.errors++
    if (level === 'warn') bar.warnings++
    bar.first ??= line
  }
  return found
}
