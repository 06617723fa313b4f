// Places of log lines: one row each, or several if they are wrapped. Pure.

/** Height of a row in pixels. */
export const ROW = 20
/** Lines rendered above and below the visible ones. */
const AROUND = 20
/** Columns of a tab, as in object.css. */
const TAB = 8
const SIMPLE = /^[\x20-\x7e]*$/
/** Characters that are two columns wide in a monospaced font. */
const WIDE = /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6]|[\u{1f300}-\u{1faff}\u{20000}-\u{3fffd}]/u

export interface Grid {
  /** Number of lines. */
  count: number
  /** Pixels of all lines. */
  height: number
  /** The place of a line; for `count`, the end. */
  top: (nth: number) => number
  /** The line at a place. */
  at: (place: number) => number
}

/** One row for each line. */
export function even(count: number): Grid {
  return { count, height: count * ROW, top: (nth) => nth * ROW, at: (place) => within(count, Math.floor(place / ROW)) }
}

/** As many rows as each line needs. */
export function uneven(rows: Iterable<number>): Grid {
  const ends = [0]
  for (const needed of rows) ends.push((ends.at(-1) ?? 0) + needed)
  const count = ends.length - 1
  const all = ends[count] ?? 0
  return {
    count,
    height: all * ROW,
    top: (nth) => (ends[Math.min(Math.max(nth, 0), count)] ?? 0) * ROW,
    at: (place) => {
      const row = Math.floor(place / ROW)
      let [from, to] = [0, count]
      while (from < to) {
        const middle = (from + to) >>> 1
        if ((ends[middle + 1] ?? 0) <= row) from = middle + 1
        else to = middle
      }
      return within(count, from)
    },
  }
}

const within = (count: number, nth: number) => Math.max(0, Math.min(count - 1, nth))

/** Rows of a text that breaks at any character. */
export function rowsOf(text: string, columns: number): number {
  if (SIMPLE.test(text)) return Math.max(1, Math.ceil(text.length / columns))
  let [rows, at] = [1, 0]
  for (const letter of text) {
    if (letter === '\n') {
      rows++
      at = 0
      continue
    }
    const width = letter === '\t' ? TAB - (at % TAB) : WIDE.test(letter) ? 2 : 1
    if (at + width > columns && at > 0) {
      rows++
      at = 0
    }
    at += width
  }
  return rows
}

/** The lines to render; the last is below the first if there are none. */
export function visible({ count, at }: Grid, top: number, height: number): { first: number; last: number } {
  if (count === 0) return { first: 0, last: -1 }
  return { first: Math.max(0, at(top) - AROUND), last: Math.min(count - 1, at(top + height) + AROUND) }
}

/** The scroll position that makes a line visible with the least movement. */
export function reveal(grid: Grid, nth: number, top: number, height: number): number {
  const [begin, end] = [grid.top(nth), grid.top(nth + 1)]
  if (begin < top) return begin
  return end > top + height ? end - height : top
}
