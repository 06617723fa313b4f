// Virtual scrolling: the rows of a long list that are rendered. Sizes and positions are in pixels. Has no side effects.

/** Rows rendered above and below the visible ones, so that fast scrolling shows no gap. */
const OVERSCAN_ROWS = 8

export interface Window {
  first: number
  /** The last one; below `first` if there are none. */
  last: number
}

/** Rows to render for a scroll position. */
export function visibleRows(top: number, height: number, row: number, count: number): Window {
  const first = Math.max(0, Math.floor(top / row) - OVERSCAN_ROWS)
  const last = Math.min(count - 1, Math.ceil((top + height) / row) + OVERSCAN_ROWS)
  return { first: Math.min(first, Math.max(0, count - 1)), last }
}

/** Maximum number of rendered rows. */
export function maxRenderedRows(height: number, row: number): number {
  return Math.ceil(height / row) + 2 * OVERSCAN_ROWS + 1
}

/** The rendered rows: in document order, except while scrolling: then elements keep their place and show other hits. */
export function renderOrder({ first, last }: Window, slots: number, moving: boolean): number[] {
  const rows = Array.from({ length: Math.max(0, last - first + 1) }, (_, nth) => first + nth)
  return moving ? rows.sort((a, b) => (a % slots) - (b % slots)) : rows
}

/** Scroll position that makes a row visible with minimal movement. `head` covers the top. */
export function scrollTopToReveal(nth: number, top: number, height: number, row: number, head: number): number {
  const begin = nth * row
  if (begin < top) return begin
  const end = begin + row + head
  return end > top + height ? end - height : top
}

/** The row that a key selects; undefined: not a navigation key. */
export function rowAfterKey(key: string, current: number, count: number, page: number): number | undefined {
  const targets: Record<string, number> = {
    ArrowDown: current + 1,
    j: current + 1,
    ArrowUp: current - 1,
    k: current - 1,
    PageDown: current + page,
    PageUp: current - page,
    Home: 0,
    g: 0,
    End: count - 1,
    G: count - 1,
  }
  const target = targets[key]
  return target === undefined || count === 0 ? undefined : Math.min(count - 1, Math.max(0, target))
}
