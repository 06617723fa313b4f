// Repeated log lines. Has no side effects.
import type { LogBuffer } from './logBuffer'

/**
 * For each line, the number of consecutive lines that it stands for: itself, and those after it with the same source and text. 0 for a line
 * that an earlier one stands for.
 */
export function countRepeats(buffer: Pick<LogBuffer, 'length' | 'at'>): number[] {
  const counts: number[] = []
  let first = 0
  for (let nth = 0; nth < buffer.length; nth++) {
    const [line, kept] = [buffer.at(nth), buffer.at(first)]
    const isRepeated = nth > 0 && line?.text === kept?.text && line?.source === kept?.source
    if (!isRepeated) first = nth
    counts[nth] = 0
    counts[first] = (counts[first] ?? 0) + 1
  }
  return counts
}

/** The line that is shown in place of a line: itself, or the first line that it repeats. */
export function findShownLine(counts: readonly number[], nth: number): number {
  let line = nth
  while (line > 0 && counts[line] === 0) line--
  return line
}
