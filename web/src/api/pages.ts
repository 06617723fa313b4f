// Loaded pages of a search result. Pages far from the visible rows are dropped, and loaded again by their cursor. Has
// no side effects.
import type { Hit } from './types'

/** Limits of the size of the first page in hits. */
const MIN_FIRST_PAGE_SIZE = 40
export const MAX_FIRST_PAGE_SIZE = 60
/** Height of the lowest row in pixels. */
const MIN_ROW_HEIGHT = 28
/** Size of further pages in hits. */
export const PAGE_SIZE = 500
/**
 * Rows loaded below the rendered ones: few while the list is at its top, because each key in the search box replaces the results, more once
 * the user scrolls.
 */
const PREFETCH_ROWS_AT_TOP = 10
const PREFETCH_ROWS = PAGE_SIZE
/** Pages kept on each side of the visible ones. */
const KEPT_PAGES = 3
/** Maximum number of hits that were added live; the oldest are dropped. */
const MAX_FRESH_HITS = 500

/** Size of the first page in hits: a little more than the rows of a window of this height, so that it is shown soon. */
export function firstPageSize(windowHeight: number): number {
  const rows = Math.ceil(windowHeight / MIN_ROW_HEIGHT) + PREFETCH_ROWS_AT_TOP
  return Math.min(MAX_FIRST_PAGE_SIZE, Math.max(MIN_FIRST_PAGE_SIZE, rows))
}

export interface Page {
  /** The cursor that requests it; undefined for the first page. */
  cursor: string | undefined
  /** Undefined after the page was dropped. */
  hits: Hit[] | undefined
  count: number
}

export interface Pages {
  /** Hits that were added live, newest first; they are above the pages. */
  fresh: Hit[]
  pages: Page[]
  /** Cursor of the page after the last one. */
  next: string | undefined
}

export const NO_PAGES: Pages = { fresh: [], pages: [], next: undefined }

/** Identity of a hit. */
export function keyOf(hit: Pick<Hit, 'cluster' | 'apiVersion' | 'resource' | 'namespace' | 'name'>): string {
  return [hit.cluster, hit.apiVersion, hit.resource, hit.namespace ?? '', hit.name].join('\n')
}

export function rowCount({ fresh, pages }: Pages): number {
  return pages.reduce((sum, page) => sum + page.count, fresh.length)
}

/** The hit in a row; undefined if its page is not loaded. */
export function hitAt({ fresh, pages }: Pages, row: number): Hit | undefined {
  if (row < fresh.length) return fresh[row]
  let at = row - fresh.length
  for (const page of pages) {
    if (at < page.count) return page.hits?.[at]
    at -= page.count
  }
  return undefined
}

/** Indices of the first and the last page of a range of rows. */
function pageRange({ fresh, pages }: Pages, first: number, last: number): [number, number] {
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

/** Index of the first dropped page in a range of rows. */
export function findMissingPage(all: Pages, first: number, last: number): number | undefined {
  const [from, to] = pageRange(all, first, last)
  const nth = all.pages.slice(from, to + 1).findIndex((page) => page.hits === undefined)
  return nth < 0 ? undefined : from + nth
}

export interface PageRequest {
  cursor: string
  /** Index of the dropped page that is restored; undefined: the page follows the last one. */
  nth: number | undefined
}

/** The page to request while a range of rows is rendered. */
export function findPageToLoad(all: Pages, first: number, last: number): PageRequest | undefined {
  const nth = findMissingPage(all, first, last)
  const isNearEnd = last > rowCount(all) - (first > 0 ? PREFETCH_ROWS : PREFETCH_ROWS_AT_TOP)
  const cursor = nth !== undefined ? all.pages[nth]?.cursor : isNearEnd ? all.next : undefined
  return cursor === undefined ? undefined : { cursor, nth }
}

/** Adds streamed hits to the first page. */
export function appendStreamedHits(all: Pages, hits: Hit[]): Pages {
  const [first] = all.pages
  const joined = [...(first?.hits ?? []), ...hits]
  return { ...all, pages: [{ cursor: undefined, hits: joined, count: joined.length }] }
}

/** Adds a page after the last one. */
export function appendPage(all: Pages, hits: Hit[], next: string | undefined): Pages {
  return { ...all, pages: [...all.pages, { cursor: all.next, hits, count: hits.length }], next }
}

/** Restores a dropped page. */
export function restorePage(all: Pages, nth: number, hits: Hit[]): Pages {
  return { ...all, pages: all.pages.map((page, n) => (n === nth ? { ...page, hits, count: hits.length } : page)) }
}

/** Drops pages far from these rows. The first page is kept, because live changes refer to it. */
export function dropFarPages(all: Pages, first: number, last: number): Pages {
  const [from, to] = pageRange(all, first, last)
  const isFar = (nth: number) => nth > 0 && (nth < from - KEPT_PAGES || nth > to + KEPT_PAGES)
  if (!all.pages.some((page, nth) => page.hits && isFar(nth))) return all
  return { ...all, pages: all.pages.map((page, nth) => (isFar(nth) ? { ...page, hits: undefined } : page)) }
}

/** Changes by identity; undefined: the hit no longer matches. */
export type Changes = Map<string, Hit | undefined>

/** Updates changed hits in place, adds new ones on top, and removes those that no longer match. */
export function applyChanges(all: Pages, changes: Changes): Pages {
  const shownKeys = new Set<string>()
  const applyTo = (hits: Hit[]) =>
    hits.flatMap((hit) => {
      const key = keyOf(hit)
      if (!changes.has(key)) return [hit]
      shownKeys.add(key)
      return changes.get(key) ?? []
    })
  const pages = all.pages.map((page) => {
    if (!page.hits) return page
    const hits = applyTo(page.hits)
    return { ...page, hits, count: hits.length }
  })
  const remaining = applyTo(all.fresh)
  const added = [...changes].flatMap(([key, hit]) => (hit && !shownKeys.has(key) ? [hit] : []))
  return { ...all, pages, fresh: [...added.reverse(), ...remaining].slice(0, MAX_FRESH_HITS) }
}
