import { memo, useEffect, useLayoutEffect, useRef, useState, type CSSProperties, type RefObject } from 'react'
import { useLocation } from 'wouter'
import { objectAddress, type Tab } from '../api/address'
import { keyOf, hitAt, rowCount, type Pages } from '../api/pages'
import { sortBy, sortOrderOf } from '../api/query'
import type { Hit } from '../api/types'
import { usePrefs, type Density } from '../prefs'
import { useText } from '../text'
import { minTableWidth, titleOf, type Column } from './columns'
import { isTyping, useKeys } from './keys'
import { nextRestoreStep, positionFromState, withPosition, type ListPosition } from './listPosition'
import { maxRenderedRows, renderOrder, scrollTopToReveal, rowAfterKey, visibleRows, type Window } from './window'

/** Height of a row in pixels by density, as in tokens.css. */
const ROW_HEIGHTS: Record<Density, number> = { compact: 28, comfortable: 36 }
/** Time without scroll events after which scrolling has ended. */
const SCROLL_END_MS = 150

interface HitsProps {
  pages: Pages
  total: number | undefined
  /** True if the pages belong to `q`, false if to the previous query. */
  isCurrent: boolean
  /** True if the server has sent all hits of the first page. */
  isComplete: boolean
  /** True until all hits of the first page of `q` are shown, unless the search has failed. */
  isBusy: boolean
  columns: Column[]
  q: string
  changed: ReadonlySet<string>
  /** Unix time in seconds that ages are relative to; undefined: the current time. */
  now: number | undefined
  onVisibleRows: (first: number, last: number) => void
  /** Called with the query that a click on a column header sorts. */
  onQuery: (query: string) => void
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
const VIEW_KEYS: Record<string, [Tab, Record<string, string>?]> = { l: ['logs'], y: ['yaml'], e: ['yaml', { edit: 'true' }], s: ['overview', { do: 'scale' }] }

/** Grid with the rows of a result, of which only the visible ones are rendered. It is one tab stop; arrow keys select rows. */
export function Hits({ pages, total, isCurrent, isComplete, isBusy, columns, q, changed, now, onVisibleRows, onQuery, onOpen, peek, onPeek, onSelect, marked, onMark }: HitsProps) {
  const t = useText()
  const rowHeight = ROW_HEIGHTS[usePrefs().density]
  const [, navigate] = useLocation()
  const scroller = useRef<HTMLDivElement>(null)
  const count = rowCount(pages)
  const rowWindow = useWindow(scroller, count, rowHeight)
  const { first, last } = rowWindow
  const [active, setActive] = useState(-1)

  // A new query starts at the top; Back and Forward restore the position of their history entry.
  const restoredPosition = useRef<ListPosition>(undefined)
  /** False if the list is at its top. Reading its position instead would force a layout for each key in the search box. */
  const isScrolled = useRef(false)
  useLayoutEffect(() => {
    setActive(-1)
    if (isScrolled.current) scroller.current?.scrollTo(0, 0)
    isScrolled.current = false
    restoredPosition.current = positionFromState(window.history.state)
  }, [q])
  useLayoutEffect(() => {
    const box = scroller.current
    const to = isCurrent && restoredPosition.current && box && nextRestoreStep(restoredPosition.current, pages, rowHeight, isComplete && pages.next === undefined)
    if (!to) return
    if ('load' in to) return onVisibleRows(to.load, to.load)
    restoredPosition.current = undefined
    box.scrollTop = to.top
    isScrolled.current = true
    setActive(to.row)
    // The search box takes the focus of a new page.
    if (to.row >= 0) box.focus({ preventScroll: true })
  }, [q, pages, isCurrent, isComplete, onVisibleRows])
  useEffect(() => {
    if (restoredPosition.current === undefined) onVisibleRows(first, last)
  }, [onVisibleRows, first, last])
  const selected = active >= 0 ? hitAt(pages, active) : undefined
  useEffect(() => onSelect(selected), [selected, onSelect])
  // An open drawer shows the first row, unless a position is being restored.
  useEffect(() => {
    if (peek && count > 0 && restoredPosition.current === undefined) setActive((now) => Math.max(now, 0))
  }, [peek, active, count])
  /** Stores the position in the current history entry before an object is opened. */
  const savePosition = (row = active) => {
    const box = scroller.current
    if (!box || restoredPosition.current !== undefined) return
    const hit = hitAt(pages, row)
    const position = { row, key: hit && keyOf(hit), top: box.scrollTop }
    window.history.replaceState(withPosition(window.history.state, position), '')
  }

  useKeys((event) => {
    const box = scroller.current
    if (!box || isTyping(event.target) || event.ctrlKey || event.metaKey || event.altKey) return
    const isInBox = box.contains(event.target as Node)
    const isUnfocused = event.target === document.body
    if (!isInBox && !isUnfocused) return
    const open = (...view: [Tab?, Record<string, string>?]) => {
      if (!selected) return
      onOpen()
      savePosition()
      navigate(objectAddress(selected, ...view))
    }
    if (event.key === 'Enter' && isInBox) {
      if (event.target === box) open()
      return
    }
    const view = VIEW_KEYS[event.key]
    if (view && selected) {
      event.preventDefault()
      return open(...view)
    }
    if (event.key === ' ' && count > 0 && (isUnfocused || event.target === box)) {
      event.preventDefault()
      box.focus({ preventScroll: true })
      return onPeek(!peek)
    }
    if (event.key === 'Escape' && peek) return onPeek(false)
    if (event.key === 'x' && selected) {
      event.preventDefault()
      return onMark(selected)
    }
    const rowsPerPage = Math.max(1, Math.floor(box.clientHeight / rowHeight) - 2)
    const to = rowAfterKey(event.key, active, count, rowsPerPage)
    if (to === undefined) return
    event.preventDefault()
    box.focus({ preventScroll: true })
    setActive(to)
    isScrolled.current = true
    box.scrollTop = scrollTopToReveal(to, box.scrollTop, box.clientHeight, rowHeight, rowHeight)
  })

  const sortOrder = sortOrderOf(q)
  // The column widths are the same for all rows.
  const gridStyle = { '--columns': columns.map(({ width }) => width).join(' '), '--least': `${minTableWidth(columns)}px` } as CSSProperties
  return (
    <div
      className="hits"
      id="results"
      ref={scroller}
      style={gridStyle}
      tabIndex={0}
      role="grid"
      aria-multiselectable="true"
      aria-label={t.results}
      aria-busy={isBusy}
      // Rows beyond the query's limit do not exist.
      aria-rowcount={(pages.next === undefined ? count : Math.max(total ?? 0, count)) + 1}
      aria-colcount={columns.length}
      aria-activedescendant={active >= first && active <= last ? `row-${active}` : undefined}
      onScroll={() => {
        isScrolled.current = true
        rowWindow.onScroll()
      }}
      onClick={(event) => {
        const mark = (event.target as Element).closest('.mark')
        const hit = mark && hitAt(pages, rowOf(mark))
        if (hit) return onMark(hit)
        const link = (event.target as Element).closest('a')
        if (!link) return
        onOpen()
        // Follows links within the page; modified clicks are left to the browser.
        if (event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return
        event.preventDefault()
        savePosition(rowOf(link))
        navigate(link.getAttribute('href') ?? '')
      }}
    >
      <div role="row" aria-rowindex={1} className="row head">
        {columns.map(({ name, sort, number }) => {
          const label = titleOf({ name }, t)
          const isSorted = sort !== undefined && sortOrder?.column === sort
          return (
            <span key={name} role="columnheader" className={number ? 'number' : undefined} aria-sort={isSorted ? (sortOrder.descending ? 'descending' : 'ascending') : undefined}>
              {sort === undefined ? (
                label
              ) : (
                <button type="button" title={t.sortBy(label)} onClick={() => onQuery(sortBy(q, sort))}>
                  {label} <i aria-hidden="true">{isSorted ? (sortOrder.descending ? '↓' : '↑') : ''}</i>
                </button>
              )}
            </span>
          )
        })}
      </div>
      <div style={{ height: count * rowHeight, position: 'relative' }} role="rowgroup">
        {renderOrder(rowWindow, rowWindow.slots, rowWindow.isScrolling).map((row) => {
          const hit = hitAt(pages, row)
          const flash = hit !== undefined && changed.size > 0 && changed.has(keyOf(hit))
          return <HitRow key={row % rowWindow.slots} row={row} hit={hit} columns={columns} active={row === active} changed={flash} height={rowHeight} now={now} marked={hit !== undefined && marked.size > 0 && marked.has(keyOf(hit))} />
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

interface RowWindow extends Window {
  /** Number of row elements, which are reused while scrolling. */
  slots: number
  isScrolling: boolean
  onScroll: () => void
}

/** The rows to render, updated when the scroll position or size changes. */
function useWindow(scroller: RefObject<HTMLDivElement | null>, count: number, rowHeight: number): RowWindow {
  const [viewport, setViewport] = useState({ top: 0, height: 0, moving: false })
  const scrollEndTimer = useRef<ReturnType<typeof setTimeout>>(undefined)
  const measure = (moving: boolean) => {
    const box = scroller.current
    if (!box) return
    // Updates in steps of a row's height: smaller moves show the same rows.
    const top = Math.floor(box.scrollTop / rowHeight) * rowHeight
    const height = box.clientHeight
    setViewport((previous) => (previous.top === top && previous.height === height && previous.moving === moving ? previous : { top, height, moving }))
  }
  const onScroll = () => {
    clearTimeout(scrollEndTimer.current)
    scrollEndTimer.current = setTimeout(() => measure(false), SCROLL_END_MS)
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
      clearTimeout(scrollEndTimer.current)
    }
  }, [rowHeight])
  return { ...visibleRows(viewport.top, viewport.height, rowHeight, count), slots: maxRenderedRows(viewport.height, rowHeight), isScrolling: viewport.moving, onScroll }
}
