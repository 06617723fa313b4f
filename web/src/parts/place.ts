// The place in a list of results, kept with the entry of the browser's history: Back returns to the selected row. Pure.
import { keyOf, rowAt, rows, type Pages } from '../api/pages'

export interface Place {
  /** The selected row; -1: none. */
  row: number
  /** Identity of its hit, which may be in another row by now. */
  key?: string | undefined
  top: number
}

/** Rows that are loaded to return to a place; a deeper place is given up. */
export const DEEPEST = 5_000

/** The place in the state of a history entry. */
export function placeIn(state: unknown): Place | undefined {
  const { place } = (typeof state === 'object' && state !== null ? state : {}) as { place?: Place }
  return place !== undefined && Number.isInteger(place.row) && Number.isFinite(place.top) ? place : undefined
}

/** The state of a history entry with a place. */
export function withPlace(state: unknown, place: Place): object {
  return { ...(typeof state === 'object' ? state : {}), place }
}

/** What to do to return to a place: load further rows, or scroll and select. */
export type Return = { load: number } | { row: number; top: number }

/** `height`: of a row; `complete`: there are no further pages. */
export function comeBack(place: Place, pages: Pages, height: number, complete: boolean): Return | undefined {
  const count = rows(pages)
  const wanted = Math.max(place.row, Math.floor(place.top / height))
  if (wanted >= DEEPEST) return { row: -1, top: 0 }
  if (count <= wanted && !complete) return count > 0 ? { load: wanted } : undefined
  return { row: rowOf(place, pages, count), top: place.top }
}

function rowOf({ row, key }: Place, pages: Pages, count: number): number {
  if (key === undefined) return -1
  const is = (nth: number) => {
    const hit = rowAt(pages, nth)
    return hit !== undefined && keyOf(hit) === key
  }
  if (is(row)) return row
  for (let nth = 0; nth < count; nth++) if (is(nth)) return nth
  return -1
}
