import { describe, expect, it } from 'vitest'
import { appendStreamedHits, applyChanges, appendPage, keyOf, dropFarPages, findMissingPage, findPageToLoad, firstPageSize, MAX_FIRST_PAGE_SIZE, NO_PAGES, PAGE_SIZE, restorePage, hitAt, rowCount, type Pages } from './pages'
import type { Hit } from './types'

const hit = (name: string, status = 'Running'): Hit => ({
  cluster: 'm1',
  apiVersion: 'v1',
  kind: 'Pod',
  resource: 'pods',
  namespace: 'shop',
  name,
  status,
  matched: [],
})
const page = (nth: number) => Array.from({ length: PAGE_SIZE }, (_, i) => hit(`pod-${nth * PAGE_SIZE + i}`))

/** Consecutive pages. */
function loadedPages(pages: number): Pages {
  let all: Pages = { ...appendStreamedHits(NO_PAGES, page(0)), next: 'c1' }
  for (let nth = 1; nth < pages; nth++) all = appendPage(all, page(nth), `c${nth + 1}`)
  return all
}

describe('firstPageSize', () => {
  it.each([
    ['a small window', 500, 40],
    ['a laptop', 850, 41],
    ['a large screen', 2_160, MAX_FIRST_PAGE_SIZE],
  ])('%s', (_name, height, expected) => {
    expect(firstPageSize(height)).toBe(expected)
  })
})

describe('pages', () => {
  it('grow by streamed hits', () => {
    const all = appendStreamedHits(appendStreamedHits(NO_PAGES, [hit('a')]), [hit('b')])
    expect(rowCount(all)).toBe(2)
    expect(hitAt(all, 1)?.name).toBe('b')
    expect(hitAt(all, 2)).toBeUndefined()
  })

  it('are dropped far from the visible rows, and loaded again', () => {
    const all = loadedPages(40)
    expect(rowCount(all)).toBe(40 * PAGE_SIZE)
    const bottom = dropFarPages(all, 39 * PAGE_SIZE, 40 * PAGE_SIZE - 1)
    expect(rowCount(bottom)).toBe(40 * PAGE_SIZE)
    expect(bottom.pages.filter((p) => p.hits).length).toBe(5)
    expect(hitAt(bottom, 39 * PAGE_SIZE + 1)?.name).toBe(`pod-${39 * PAGE_SIZE + 1}`)
    expect(hitAt(bottom, 3 * PAGE_SIZE)).toBeUndefined()

    expect(findMissingPage(bottom, 3 * PAGE_SIZE, 3 * PAGE_SIZE + 40)).toBe(3)
    expect(bottom.pages[3]!.cursor).toBe('c3')
    const restored = restorePage(bottom, 3, page(3))
    expect(findMissingPage(restored, 3 * PAGE_SIZE, 3 * PAGE_SIZE + 40)).toBeUndefined()
    expect(hitAt(restored, 3 * PAGE_SIZE)?.name).toBe(`pod-${3 * PAGE_SIZE}`)
  })

  it.each([
    ['its last rows are rendered', 0, MAX_FIRST_PAGE_SIZE - 1, { cursor: 'c1', nth: undefined }],
    ['the user scrolls', 1, 40, { cursor: 'c1', nth: undefined }],
    ['a row beyond its end is to be restored', 90, 90, { cursor: 'c1', nth: undefined }],
  ])('a new result has one page until %s', (_name, first, last, expected) => {
    const all: Pages = { ...appendStreamedHits(NO_PAGES, page(0).slice(0, MAX_FIRST_PAGE_SIZE)), next: 'c1' }
    expect(findPageToLoad(all, first, last)).toEqual(expected)
    // The only page of a small result.
    expect(findPageToLoad({ ...all, next: undefined }, first, last)).toBeUndefined()
  })

  it.each([0, 20, 34, 50])('are not requested for a new result whose last rendered row is %i', (last) => {
    const all: Pages = { ...appendStreamedHits(NO_PAGES, page(0).slice(0, MAX_FIRST_PAGE_SIZE)), next: 'c1' }
    expect(findPageToLoad(all, 0, last)).toBeUndefined()
  })

  it('that were dropped are requested before the one after the last', () => {
    const bottom = dropFarPages(loadedPages(40), 39 * PAGE_SIZE, 40 * PAGE_SIZE - 1)
    expect(findPageToLoad(bottom, 39 * PAGE_SIZE, 40 * PAGE_SIZE - 1)).toEqual({ cursor: 'c40', nth: undefined })
    expect(findPageToLoad(bottom, 3 * PAGE_SIZE, 3 * PAGE_SIZE + 40)).toEqual({ cursor: 'c3', nth: 3 })
    expect(findPageToLoad(bottom, 36 * PAGE_SIZE, 36 * PAGE_SIZE + 40)).toBeUndefined()
  })

  it('in memory are bounded, also for 100,000 rows', () => {
    let all = loadedPages(1)
    for (let nth = 1; nth < 200; nth++) all = dropFarPages(appendPage(all, page(nth), `c${nth + 1}`), nth * PAGE_SIZE, (nth + 1) * PAGE_SIZE - 1)
    expect(rowCount(all)).toBe(100_000)
    expect(all.pages.filter((p) => p.hits).length).toBeLessThan(10)
  })

  it('are changed in place, and new hits are added on top', () => {
    const before = appendStreamedHits(NO_PAGES, [hit('a'), hit('b'), hit('c')])
    const after = applyChanges(
      before,
      new Map([
        [keyOf(hit('b')), hit('b', 'Error')],
        [keyOf(hit('a')), undefined],
        [keyOf(hit('d')), hit('d')],
        [keyOf(hit('e')), hit('e')],
        [keyOf(hit('x')), undefined],
      ]),
    )
    const hits = Array.from({ length: rowCount(after) }, (_, row) => hitAt(after, row)!)
    expect(hits.map((h) => `${h.name} ${h.status}`)).toEqual(['e Running', 'd Running', 'b Error', 'c Running'])
    // A pushed hit keeps its identity when it changes again.
    expect(rowCount(applyChanges(after, new Map([[keyOf(hit('d')), hit('d', 'Error')]])))).toBe(4)
  })
})
