// The rows of an answer as far as the browser has them. It never has all: pages far from what is looked at are let go, and asked for
// again by the cursor they began at.
import type { Hit } from './types'

/** Hits that are asked for first, to be there soon. */
export const FIRST = 200
/** And of each page behind them. */
export const PAGE = 500
/** Pages kept on each side of those in view. */
const KEPT = 3
/** New hits shown above the others; the oldest of them leave. */
const MOST_FRESH = 500

export interface Page {
  /** Where it begins; the first page has none. */
  cursor: string | undefined
  /** Absent once it was let go. */
  hits: Hit[] | undefined
  count: number
}

export interface Pages {
  /** What came since, newest first. */
  fresh: Hit[]
  pages: Page[]
  /** Where the page behind the last one begins. */
  next: string | undefined
}

export const NONE: Pages = { fresh: [], pages: [], next: undefined }

/** Who a hit is. */
export function keyOf(hit: Pick<Hit, 'cluster' | 'apiVersion' | 'resource' | 'namespace' | 'name'>): string {
  return [hit.cluster, hit.apiVersion, hit.resource, hit.namespace ?? '', hit.name].join('\n')
}

export function rows({ fresh, pages }: Pages): number {
  return pages.reduce((sum, page) => sum + page.count, fresh.length)
}

/** The hit of a row; absent while its page is not there. */
export function rowAt({ fresh, pages }: Pages, row: number): Hit | undefined {
  if (row < fresh.length) return fresh[row]
  let at = row - fresh.length
  for (const page of pages) {
    if (at < page.count) return page.hits?.[at]
    at -= page.count
  }
  return undefined
}

/** The pages that hold these rows, first and last. */
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

/** A page in view that was let go. */
export function missing(all: Pages, first: number, last: number): number | undefined {
  const [from, to] = span(all, first, last)
  const nth = all.pages.slice(from, to + 1).findIndex((page) => page.hits === undefined)
  return nth < 0 ? undefined : from + nth
}

/** Hits of the first page as they stream in. */
export function append(all: Pages, hits: Hit[]): Pages {
  const [first] = all.pages
  const joined = [...(first?.hits ?? []), ...hits]
  return { ...all, pages: [{ cursor: undefined, hits: joined, count: joined.length }] }
}

/** A page behind the last one. */
export function follow(all: Pages, hits: Hit[], next: string | undefined): Pages {
  return { ...all, pages: [...all.pages, { cursor: all.next, hits, count: hits.length }], next }
}

/** A page that was let go, again. */
export function restore(all: Pages, nth: number, hits: Hit[]): Pages {
  return { ...all, pages: all.pages.map((page, n) => (n === nth ? { ...page, hits, count: hits.length } : page)) }
}

/** Lets go of what is far from these rows. The first page stays: it is what live changes are about. */
export function letGo(all: Pages, first: number, last: number): Pages {
  const [from, to] = span(all, first, last)
  const far = (nth: number) => nth > 0 && (nth < from - KEPT || nth > to + KEPT)
  if (!all.pages.some((page, nth) => page.hits && far(nth))) return all
  return { ...all, pages: all.pages.map((page, nth) => (far(nth) ? { ...page, hits: undefined } : page)) }
}

/** What changed since, by who it is; undefined: it left. */
export type Changes = Map<string, Hit | undefined>

/** Changed hits in their places, new ones on top, without those that left. */
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
