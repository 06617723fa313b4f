import { memo, useEffect, useLayoutEffect, useRef, useState, type CSSProperties, type RefObject } from 'react'
import { useLocation } from 'wouter'
import { objectAddress, type Tab } from '../api/address'
import { keyOf, rowAt, rows, type Pages } from '../api/pages'
import { sortBy, sorting } from '../api/query'
import type { Hit } from '../api/types'
import { usePrefs, type Density } from '../prefs'
import { useText } from '../text'
import { leastWidth, titleOf, type Column } from './columns'
import { isTyping, useKeys } from './keys'
import { comeBack, placeIn, withPlace, type Place } from './place'
import { most, placed, reveal, step, visible, type Window } from './window'

/** Height of a row by density, as in tokens.css. */
const ROWS: Record<Density, number> = { compact: 28, comfortable: 36 }
/** Milliseconds without scrolling after which the list is at rest. */
const REST = 150

interface HitsProps {
  pages: Pages
  total: number | undefined
  /** The pages are of this query, not of the previous one. */
  current: boolean
  /** All pages before the next one have arrived. */
  complete: boolean
  columns: Column[]
  q: string
  changed: ReadonlySet<string>
  /** The moment that the result is about, in Unix seconds; absent: the present. */
  now: number | undefined
  look: (first: number, last: number) => void
  onAsk: (query: string) => void
  /** Called when the user opens a hit. */
  onOpen: () => void
  /** The selected hit is shown in a drawer. */
  peek: boolean
  onPeek: (peek: boolean) => void
  onSelect: (hit: Hit | undefined) => void
  /** Hits that are marked for an action, by key. */
  marked: ReadonlyMap<string, Hit>
  onMark: (hit: Hit) => void
}

/** Keys that open a view of the selected hit. */
const VIEWS: Record<string, [Tab, Record<string, string>?]> = { l: ['logs'], y: ['yaml'], e: ['yaml', { edit: 'true' }], s: ['overview', { do: 'scale' }] }

/** The visible rows of a result. One tab stop; arrow keys select rows. */
export function Hits({ pages, total, current, complete, columns, q, changed, now, look, onAsk, onOpen, peek, onPeek, onSelect, marked, onMark }: HitsProps) {
  const t = useText()
  const rowHeight = ROWS[usePrefs().density]
  const [, navigate] = useLocation()
  const scroller = useRef<HTMLDivElement>(null)
  const count = rows(pages)
  const seen = useWindow(scroller, count, rowHeight)
  const { first, last } = seen
  const [active, setActive] = useState(-1)

  // A new query starts at the top; Back and Forward return to the place of their entry.
  const sought = useRef<Place>(undefined)
  useLayoutEffect(() => {
    setActive(-1)
    scroller.current?.scrollTo(0, 0)
    sought.current = placeIn(window.history.state)
  }, [q])
  useLayoutEffect(() => {
    const box = scroller.current
    const to = current && sought.current && box && comeBack(sought.current, pages, rowHeight, complete && pages.next === undefined)
    if (!to) return
    if ('load' in to) return look(to.load, to.load)
    sought.current = undefined
    box.scrollTop = to.top
    setActive(to.row)
    // The search box takes the focus of a new page.
    if (to.row >= 0) box.focus({ preventScroll: true })
  }, [q, pages, current, complete, look])
  useEffect(() => {
    if (sought.current === undefined) look(first, last)
  }, [look, first, last])
  const selected = active >= 0 ? rowAt(pages, active) : undefined
  useEffect(() => onSelect(selected), [selected, onSelect])
  // An open drawer shows a row from the start, unless one is restored at the same time.
  useEffect(() => {
    if (peek && count > 0 && sought.current === undefined) setActive((now) => Math.max(now, 0))
  }, [peek, active, count])
  /** Keeps the place in the current history entry before an object is opened. */
  const keep = (row = active) => {
    const box = scroller.current
    if (!box || sought.current !== undefined) return
    const hit = rowAt(pages, row)
    const place = { row, key: hit && keyOf(hit), top: box.scrollTop }
    window.history.replaceState(withPlace(window.history.state, place), '')
  }

  useKeys((event) => {
    const box = scroller.current
    if (!box || isTyping(event.target) || event.ctrlKey || event.metaKey || event.altKey) return
    const inside = box.contains(event.target as Node)
    const idle = event.target === document.body
    if (!inside && !idle) return
    const open = (...view: [Tab?, Record<string, string>?]) => {
      if (!selected) return
      onOpen()
      keep()
      navigate(objectAddress(selected, ...view))
    }
    if (event.key === 'Enter' && inside) {
      if (event.target === box) open()
      return
    }
    const view = VIEWS[event.key]
    if (view && selected) {
      event.preventDefault()
      return open(...view)
    }
    if (event.key === ' ' && count > 0 && (idle || event.target === box)) {
      event.preventDefault()
      box.focus({ preventScroll: true })
      return onPeek(!peek)
    }
    if (event.key === 'Escape' && peek) return onPeek(false)
    if (event.key === 'x' && selected) {
      event.preventDefault()
      return onMark(selected)
    }
    const screen = Math.max(1, Math.floor(box.clientHeight / rowHeight) - 2)
    const to = step(event.key, active, count, screen)
    if (to === undefined) return
    event.preventDefault()
    box.focus({ preventScroll: true })
    setActive(to)
    box.scrollTop = reveal(to, box.scrollTop, box.clientHeight, rowHeight, rowHeight)
  })

  const sorted = sorting(q)
  // The column widths are the same for all rows.
  const grid = { '--columns': columns.map(({ width }) => width).join(' '), '--least': `${leastWidth(columns)}px` } as CSSProperties
  return (
    <div
      className="hits"
      id="results"
      ref={scroller}
      style={grid}
      tabIndex={0}
      role="grid"
      aria-multiselectable="true"
      aria-label={t.results}
      // Rows beyond the query's limit do not exist.
      aria-rowcount={(pages.next === undefined ? count : Math.max(total ?? 0, count)) + 1}
      aria-colcount={columns.length}
      aria-activedescendant={active >= first && active <= last ? `row-${active}` : undefined}
      onScroll={seen.scrolled}
      onClick={(event) => {
        const mark = (event.target as Element).closest('.mark')
        const hit = mark && rowAt(pages, rowOf(mark))
        if (hit) return onMark(hit)
        const link = (event.target as Element).closest('a')
        if (!link) return
        onOpen()
        // Follows links within the page; modified clicks are left to the browser.
        if (event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return
        event.preventDefault()
        keep(rowOf(link))
        navigate(link.getAttribute('href') ?? '')
      }}
    >
      <div role="row" aria-rowindex={1} className="row head">
        {columns.map(({ name, sort, number }) => {
          const label = titleOf({ name }, t)
          const here = sort !== undefined && sorted?.by === sort
          return (
            <span key={name} role="columnheader" className={number ? 'number' : undefined} aria-sort={here ? (sorted.descending ? 'descending' : 'ascending') : undefined}>
              {sort === undefined ? (
                label
              ) : (
                <button type="button" title={t.sortBy(label)} onClick={() => onAsk(sortBy(q, sort))}>
                  {label} <i aria-hidden="true">{here ? (sorted.descending ? '↓' : '↑') : ''}</i>
                </button>
              )}
            </span>
          )
        })}
      </div>
      <div style={{ height: count * rowHeight, position: 'relative' }} role="rowgroup">
        {placed(seen, seen.slots, seen.moving).map((row) => {
          const hit = rowAt(pages, row)
          const flash = hit !== undefined && changed.size > 0 && changed.has(keyOf(hit))
          return <HitRow key={row % seen.slots} row={row} hit={hit} columns={columns} active={row === active} changed={flash} height={rowHeight} now={now} marked={hit !== undefined && marked.size > 0 && marked.has(keyOf(hit))} />
        })}
      </div>
    </div>
  )
}

interface HitRowProps {
  row: number
  hit: Hit | undefined
  columns: Column[]
  active: boolean
  changed: boolean
  height: number
  now: number | undefined
  marked: boolean
}

/** The row of an element within it; -1: none. */
const rowOf = (element: Element) => Number(/^row-(\d+)$/.exec(element.closest('[role=row]')?.id ?? '')?.[1] ?? -1)

const HitRow = memo(function HitRow({ row, hit, columns, active, changed, height, now, marked }: HitRowProps) {
  const state = `${hit?.deleted ? ' deleted' : ''}${active ? ' active' : ''}${changed ? ' changed' : ''}${marked ? ' marked' : ''}`
  return (
    <div
      role="row"
      id={`row-${row}`}
      aria-rowindex={row + 2}
      aria-selected={marked}
      className={`row${state}`}
      style={{ top: row * height }}
    >
      {/* For the pointer; the key x does the same. */}
      <i className="mark" aria-hidden="true" />
      {columns.map(({ name, show, title, number }) => (
        <span key={name} role="gridcell" className={number ? 'number' : undefined} data-column={name} title={hit && title?.(hit)}>
          {hit ? show(hit, now === undefined ? undefined : now * 1000) : '…'}
        </span>
      ))}
    </div>
  )
})

interface Seen extends Window {
  /** Row elements that are reused while scrolling. */
  slots: number
  moving: boolean
  scrolled: () => void
}

/** The rows to render, updated when the scroll position or size changes. */
function useWindow(scroller: RefObject<HTMLDivElement | null>, count: number, rowHeight: number): Seen {
  const [place, setPlace] = useState({ top: 0, height: 0, moving: false })
  const rest = useRef<ReturnType<typeof setTimeout>>(undefined)
  const measure = (moving: boolean) => {
    const box = scroller.current
    if (!box) return
    // Updates in steps of a row's height: smaller moves show the same rows.
    const top = Math.floor(box.scrollTop / rowHeight) * rowHeight
    const height = box.clientHeight
    setPlace((old) => (old.top === top && old.height === height && old.moving === moving ? old : { top, height, moving }))
  }
  const scrolled = () => {
    clearTimeout(rest.current)
    rest.current = setTimeout(() => measure(false), REST)
    measure(true)
  }
  useLayoutEffect(() => {
    measure(false)
    const box = scroller.current
    if (!box) return
    const sizes = new ResizeObserver(() => measure(false))
    sizes.observe(box)
    return () => {
      sizes.disconnect()
      clearTimeout(rest.current)
    }
  }, [rowHeight])
  return { ...visible(place.top, place.height, rowHeight, count), slots: most(place.height, rowHeight), moving: place.moving, scrolled }
}
