import { describe, expect, it } from 'vitest'
import { append, change, follow, keyOf, letGo, missing, NONE, PAGE, restore, rowAt, rows, type Pages } from './pages'
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
const page = (nth: number) => Array.from({ length: PAGE }, (_, i) => hit(`pod-${nth * PAGE + i}`))

/** Consecutive pages. */
function filled(pages: number): Pages {
  let all: Pages = { ...append(NONE, page(0)), next: 'c1' }
  for (let nth = 1; nth < pages; nth++) all = follow(all, page(nth), `c${nth + 1}`)
  return all
}

describe('pages', () => {
  it('stream in', () => {
    const all = append(append(NONE, [hit('a')]), [hit('b')])
    expect(rows(all)).toBe(2)
    expect(rowAt(all, 1)?.name).toBe('b')
    expect(rowAt(all, 2)).toBeUndefined()
  })

  it('are dropped far from the visible rows, and loaded again', () => {
    const all = filled(40)
    expect(rows(all)).toBe(40 * PAGE)
    const bottom = letGo(all, 39 * PAGE, 40 * PAGE - 1)
    expect(rows(bottom)).toBe(40 * PAGE)
    expect(bottom.pages.filter((p) => p.hits).length).toBe(5)
    expect(rowAt(bottom, 39 * PAGE + 1)?.name).toBe(`pod-${39 * PAGE + 1}`)
    expect(rowAt(bottom, 3 * PAGE)).toBeUndefined()

    expect(missing(bottom, 3 * PAGE, 3 * PAGE + 40)).toBe(3)
    expect(bottom.pages[3]!.cursor).toBe('c3')
    const again = restore(bottom, 3, page(3))
    expect(missing(again, 3 * PAGE, 3 * PAGE + 40)).toBeUndefined()
    expect(rowAt(again, 3 * PAGE)?.name).toBe(`pod-${3 * PAGE}`)
  })

  it('of 100,000 rows are few', () => {
    let all = filled(1)
    for (let nth = 1; nth < 200; nth++) all = letGo(follow(all, page(nth), `c${nth + 1}`), nth * PAGE, (nth + 1) * PAGE - 1)
    expect(rows(all)).toBe(100_000)
    expect(all.pages.filter((p) => p.hits).length).toBeLessThan(10)
  })

  it('are changed in place, and on top', () => {
    const before = append(NONE, [hit('a'), hit('b'), hit('c')])
    const after = change(
      before,
      new Map([
        [keyOf(hit('b')), hit('b', 'Error')],
        [keyOf(hit('a')), undefined],
        [keyOf(hit('d')), hit('d')],
        [keyOf(hit('e')), hit('e')],
        [keyOf(hit('x')), undefined],
      ]),
    )
    const shown = Array.from({ length: rows(after) }, (_, row) => rowAt(after, row)!)
    expect(shown.map((h) => `${h.name} ${h.status}`)).toEqual(['e Running', 'd Running', 'b Error', 'c Running'])
    // A pushed hit keeps its identity when it changes again.
    expect(rows(change(after, new Map([[keyOf(hit('d')), hit('d', 'Error')]])))).toBe(4)
  })
})
