// Which rows of a long list are there to be seen.

/** Rows rendered above and below those in view, so that a flick of the wheel meets no gap. */
const AROUND = 20

export interface Window {
  first: number
  /** The last one; below `first` when there are none. */
  last: number
}

export function visible(top: number, height: number, row: number, count: number): Window {
  const first = Math.max(0, Math.floor(top / row) - AROUND)
  const last = Math.min(count - 1, Math.ceil((top + height) / row) + AROUND)
  return { first: Math.min(first, Math.max(0, count - 1)), last }
}

/** The most rows that are rendered at a time. */
export function most(height: number, row: number): number {
  return Math.ceil(height / row) + 2 * AROUND + 1
}

/** The rendered rows as they stand in the document: in order at rest; while they move each stays where it is, and shows another hit. */
export function placed({ first, last }: Window, slots: number, moving: boolean): number[] {
  const rows = Array.from({ length: Math.max(0, last - first + 1) }, (_, nth) => first + nth)
  return moving ? rows.sort((a, b) => (a % slots) - (b % slots)) : rows
}

/** Where to scroll so that a row is in view, with as little movement as possible. `head` covers the top. */
export function reveal(nth: number, top: number, height: number, row: number, head: number): number {
  const begin = nth * row
  if (begin < top) return begin
  const end = begin + row + head
  return end > top + height ? end - height : top
}

/** The row that a key leads to; undefined: the key is not ours. */
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
