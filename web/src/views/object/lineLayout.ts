// Vertical positions of log lines, which have one row each, or several if they are wrapped. Has no side effects.

/** Height of a row in pixels. */
export const ROW_HEIGHT = 20
/** Lines rendered above and below the visible ones. */
const OVERSCAN_LINES = 20
/** Width of a tab in characters, as in object.css. */
const TAB_COLUMNS = 8
const PRINTABLE_ASCII = /^[\x20-\x7e]*$/
/** Characters that are two columns wide in a monospaced font. */
const WIDE = /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6]|[\u{1f300}-\u{1faff}\u{20000}-\u{3fffd}]/u

export interface LineLayout {
  /** Number of lines. */
  count: number
  /** Height of all lines in pixels. */
  height: number
  /** Position of a line in pixels; for `count`, the end. */
  top: (nth: number) => number
  /** The line at a position in pixels. */
  at: (offset: number) => number
}

/** Layout with one row for each line. */
export function unwrappedLayout(count: number): LineLayout {
  return { count, height: count * ROW_HEIGHT, top: (nth) => nth * ROW_HEIGHT, at: (offset) => clampIndex(count, Math.floor(offset / ROW_HEIGHT)) }
}

/** A layout with these numbers of rows for each line. */
export function wrappedLayout(rows: Iterable<number>): LineLayout {
  const rowEnds = [0]
  for (const needed of rows) rowEnds.push((rowEnds.at(-1) ?? 0) + needed)
  const count = rowEnds.length - 1
  const totalRows = rowEnds[count] ?? 0
  return {
    count,
    height: totalRows * ROW_HEIGHT,
    top: (nth) => (rowEnds[Math.min(Math.max(nth, 0), count)] ?? 0) * ROW_HEIGHT,
    at: (offset) => {
      const row = Math.floor(offset / ROW_HEIGHT)
      let [from, to] = [0, count]
      while (from < to) {
        const middle = (from + to) >>> 1
        if ((rowEnds[middle + 1] ?? 0) <= row) from = middle + 1
        else to = middle
      }
      return clampIndex(count, from)
    },
  }
}

const clampIndex = (count: number, nth: number) => Math.max(0, Math.min(count - 1, nth))

/** Number of rows of a text that is broken at any character. */
export function countRows(text: string, columns: number): number {
  if (PRINTABLE_ASCII.test(text)) return Math.max(1, Math.ceil(text.length / columns))
  let [rows, at] = [1, 0]
  for (const letter of text) {
    if (letter === '\n') {
      rows++
      at = 0
      continue
    }
    const width = letter === '\t' ? TAB_COLUMNS - (at % TAB_COLUMNS) : WIDE.test(letter) ? 2 : 1
    if (at + width > columns && at > 0) {
      rows++
      at = 0
    }
    at += width
  }
  return rows
}

/** The lines to render at a scroll position; `last` is less than `first` if there are none. */
export function visibleLines({ count, at }: LineLayout, top: number, height: number): { first: number; last: number } {
  if (count === 0) return { first: 0, last: -1 }
  return { first: Math.max(0, at(top) - OVERSCAN_LINES), last: Math.min(count - 1, at(top + height) + OVERSCAN_LINES) }
}

/** The scroll position that makes a line visible with the least movement. */
export function scrollTopToReveal(layout: LineLayout, nth: number, top: number, height: number): number {
  const [begin, end] = [layout.top(nth), layout.top(nth + 1)]
  if (begin < top) return begin
  return end > top + height ? end - height : top
}
