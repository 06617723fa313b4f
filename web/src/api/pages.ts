// The rows of a result that are loaded. Pages far from the visible rows are dropped, and loaded again by their
// cursor.
import type { Hit } from './types'

/** Size of the first page, small to be shown soon. */
export const FIRST = 200
/** Size of further pages. */
export const PAGE = 500
/** Pages kept on each side of the visible ones. */
const KEPT = 3
/** New hits shown above the others; the oldest are dropped. */
const MOST_FRESH = 500

export interface Page {
  /** Its cursor; the first page has none. */
  cursor: string | undefined
  /** Absent after it was dropped. */
  hits: Hit[] | undefined
  count: number
}

export interface Pages {
  /** Hits that appeared since, newest first. */
  fresh: Hit[]
  pages: Page[]
  /** Cursor of the page after the last one. */
  next: string | undefined
}

export const NONE: Pages = { fresh: [], pages: [], next: undefined }

/** Identity of a hit. */
export function keyOf(hit: Pick<Hit, 'cluster' | 'apiVersion' | 'resource' | 'namespace' | 'name'>): string {
  return [hit.cluster, hit.apiVersion, hit.resource, hit.namespace ?? '', hit.name].join('\n')
}

export function rows({ fresh, pages }: Pages): number {
  return pages.reduce((sum, page) => sum + page.count, fresh.length)
}

/** The hit of a row; absent if its page is not loaded. */
export function rowAt({ fresh, pages }: Pages, row: number): Hit | undefined {
  if (row < fresh.length) return fresh[row]
  let at = row - fresh.length
  for (const page of pages) {
    if (at < page.count) return page.hits?.[at]
    at -= page.count
  }
  return undefined
}

/** Pages of a range of rows, first and last. */
function span({ fresh, pages }: Pages, first: number, last: number): [number, number] {
  let begin = fresh.length
  let from = 0
  let to = 0
  pages.forEach((page, nth) => {
    if (begin <= first) from = nth
    if (begin <= last) to = nth
    begin += page.count
  })
  return [from, to]
}

/** A dropped page within the visible range. */
export function missing(all: Pages, first: number, last: number): number | undefined {
  const [from, to] = span(all, first, last)
  const nth = all.pages.slice(from, to + 1).findIndex((page) => page.hits === undefined)
  return nth < 0 ? undefined : from + nth
}

/** Adds streamed hits to the first page. */
export function append(all: Pages, hits: Hit[]): Pages {
  const [first] = all.pages
  const joined = [...(first?.hits ?? []), ...hits]
  return { ...all, pages: [{ cursor: undefined, hits: joined, count: joined.length }] }
}

/** Adds a page after the last one. */
export function follow(all: Pages, hits: Hit[], next: string | undefined): Pages {
  return { ...all, pages: [...all.pages, { cursor: all.next, hits, count: hits.length }], next }
}

/** Restores a dropped page. */
export function restore(all: Pages, nth: number, hits: Hit[]): Pages {
  return { ...all, pages: all.pages.map((page, n) => (n === nth ? { ...page, hits, count: hits.length } : page)) }
}

/** Drops pages far from these rows. The first page is kept, because live changes refer to it. */
export function letGo(all: Pages, first: number, last: number): Pages {
  const [from, to] = span(all, first, last)
  const far = (nth: number) => nth > 0 && (nth < from - KEPT || nth > to + KEPT)
  if (!all.pages.some((page, nth) => page.hits && far(nth))) return all
  return { ...all, pages: all.pages.map((page, nth) => (far(nth) ? { ...page, hits: undefined } : page)) }
}

/** Changes by identity; undefined: the hit no longer matches. */
export type Changes = Map<string, Hit | undefined>

/** Updates changed hits in place, adds new ones on top, and removes those that no longer match. */
export function change(all: Pages, changes: Changes): Pages {
  const found = new Set<string>()
  const changed = (hits: Hit[]) =>
    hits.flatMap((hit) => {
      const key = keyOf(hit)
      if (!changes.has(key)) return [hit]
      found.add(key)
      return changes.get(key) ?? []
    })
  const pages = all.pages.map((page) => {
    if (!page.hits) return page
    const hits = changed(page.hits)
    return { ...page, hits, count: hits.length }
  })
  const kept = changed(all.fresh)
  const added = [...changes].flatMap(([key, hit]) => (hit && !found.has(key) ? [hit] : []))
  return { ...all, pages, fresh: [...added.reverse(), ...kept].slice(0, MOST_FRESH) }
}
