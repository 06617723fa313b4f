// Position in a list of results, stored in the browser's history entry, so that Back returns to the selected row. Has
// no side effects.
import { keyOf, hitAt, rowCount, type Pages } from '../api/pages'

export interface ListPosition {
  /** The selected row; -1: none. */
  row: number
  /** Key of the row's hit, which can be in another row by now. */
  key?: string | undefined
  /** Scroll position in pixels. */
  top: number
}

/** Maximum number of rows that are loaded to restore a position. */
export const MAX_RESTORED_ROWS = 5_000

/** The position in the state of a history entry; undefined if there is no valid one. */
export function positionFromState(state: unknown): ListPosition | undefined {
  const { place } = (typeof state === 'object' && state !== null ? state : {}) as { place?: ListPosition }
  return place !== undefined && Number.isInteger(place.row) && Number.isFinite(place.top) ? place : undefined
}

/** Adds a position to the state of a history entry. */
export function withPosition(state: unknown, position: ListPosition): object {
  return { ...(typeof state === 'object' ? state : {}), place: position }
}

/** Next step to restore a position: load rows up to `load`, or scroll to `top` and select `row`. */
export type RestoreStep = { load: number } | { row: number; top: number }

/** Undefined while no row is loaded. `height`: height of a row in pixels; `complete`: there are no further pages. */
export function nextRestoreStep(position: ListPosition, pages: Pages, height: number, complete: boolean): RestoreStep | undefined {
  const count = rowCount(pages)
  const targetRow = Math.max(position.row, Math.floor(position.top / height))
  if (targetRow >= MAX_RESTORED_ROWS) return { row: -1, top: 0 }
  if (count <= targetRow && !complete) return count > 0 ? { load: targetRow } : undefined
  return { row: rowOf(position, pages, count), top: position.top }
}

function rowOf({ row, key }: ListPosition, pages: Pages, count: number): number {
  if (key === undefined) return -1
  const isHit = (nth: number) => {
    const hit = hitAt(pages, nth)
    return hit !== undefined && keyOf(hit) === key
  }
  if (isHit(row)) return row
  for (let nth = 0; nth < count; nth++) if (isHit(nth)) return nth
  return -1
}
