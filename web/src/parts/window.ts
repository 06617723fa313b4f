// Determines the visible rows of a long list.

/** Rows rendered above and below the visible ones, so that fast scrolling shows no gap. */
const AROUND = 20

export interface Window {
  first: number
  /** The last one; below `first` if there are none. */
  last: number
}

export function visible(top: number, height: number, row: number, count: number): Window {
  const first = Math.max(0, Math.floor(top / row) - AROUND)
  const last = Math.min(count - 1, Math.ceil((top + height) / row) + AROUND)
  return { first: Math.min(first, Math.max(0, count - 1)), last }
}

/** Maximum number of rendered rows. */
export function most(height: number, row: number): number {
  return Math.ceil(height / row) + 2 * AROUND + 1
}

/** The rendered rows: in document order at rest; while scrolling, elements keep their place and show other hits. */
export function placed({ first, last }: Window, slots: number, moving: boolean): number[] {
  const rows = Array.from({ length: Math.max(0, last - first + 1) }, (_, nth) => first + nth)
  return moving ? rows.sort((a, b) => (a % slots) - (b % slots)) : rows
}

/** Scroll position that makes a row visible with minimal movement. `head` covers the top. */
export function reveal(nth: number, top: number, height: number, row: number, head: number): number {
  const begin = nth * row
  if (begin < top) return begin
  const end = begin + row + head
  return end > top + height ? end - height : top
}

/** The row that a key selects; undefined: not a navigation key. */
export function step(key: string, now: number, count: number, page: number): number | undefined {
  const to: Record<string, number> = {
    ArrowDown: now + 1,
    j: now + 1,
    ArrowUp: now - 1,
    k: now - 1,
    PageDown: now + page,
    PageUp: now - page,
    Home: 0,
    g: 0,
    End: count - 1,
    G: count - 1,
  }
  const wanted = to[key]
  return wanted === undefined || count === 0 ? undefined : Math.min(count - 1, Math.max(0, wanted))
}
