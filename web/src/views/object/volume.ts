// Histogram of log lines over time, by level. Has no side effects.
import { levelOf } from './level'
import type { LogLine } from './logBuffer'

export const BAR_COUNT = 60

export interface VolumeBar {
  /** Unix milliseconds. */
  from: number
  lines: number
  errors: number
  warnings: number
  /** The first line of the bar. */
  first: LogLine | undefined
}

interface LineList {
  length: number
  at: (index: number) => LogLine | undefined
}

interface ParsedLine {
  /** Unix milliseconds; NaN without a time. */
  time: number
  level: ReturnType<typeof levelOf>
}

/** Parsed lines. Each line is parsed once, because the histogram is drawn again after each change. */
const parsedLines = new WeakMap<LogLine, ParsedLine>()

function parseLine(line: LogLine): ParsedLine {
  const cached = parsedLines.get(line)
  if (cached) return cached
  const parsed = { time: line.time === undefined ? NaN : Date.parse(line.time), level: levelOf(line.text) }
  parsedLines.set(line, parsed)
  return parsed
}

/** Bars of equal duration from the first to the last line. Lines must be sorted by time. Empty if all lines have one time, or none has a time. */
export function volumeBars(lines: LineList, bars = BAR_COUNT): VolumeBar[] {
  const all = Array.from({ length: lines.length }, (_, nth) => lines.at(nth)).filter((line) => line !== undefined)
  const hasTime = (line: LogLine | undefined) => line !== undefined && !Number.isNaN(parseLine(line).time)
  const [first, last] = [all.find(hasTime), all.findLast(hasTime)]
  if (!first || !last) return []
  const from = parseLine(first).time
  const width = (parseLine(last).time - from) / bars
  if (!(width > 0)) return []
  const histogram = Array.from({ length: bars }, (_, nth): VolumeBar => ({ from: from + nth * width, lines: 0, errors: 0, warnings: 0, first: undefined }))
  let index = 0
  for (const line of all) {
    const { time, level } = parseLine(line)
    // A line without a time follows the one before it.
    if (!Number.isNaN(time)) index = Math.min(bars - 1, Math.max(0, Math.floor((time - from) / width)))
    const bar = histogram[index]
    if (!bar) continue
    bar.lines++
    if (level === 'bad') bar.errors++
    if (level === 'warn') bar.warnings++
    bar.first ??= line
  }
  return histogram
}
