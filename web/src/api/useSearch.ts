import { useCallback, useEffect, useLayoutEffect, useReducer, useRef, useState } from 'react'
import { flushSync } from 'react-dom'
import { getJson, viewErrorOf } from './client'
import { firstPageSize, keyOf, findPageToLoad, PAGE_SIZE, type Changes } from './pages'
import { PreparedQuery, ResultStream } from './preparedQuery'
import { hasLimit } from './query'
import { RequestSlot } from './requestSlot'
import { INITIAL_STATE, reduce, type Action, type Live, type SearchState } from './searchState'
import type { Hit, SearchDone } from './types'
import { useOnConnectionRestored } from './useConnection'

export const API = '/apis/search.crowsnest.io/v1alpha1'
/** Facets next to the results, in display order. */
export const FACETS = ['kind', 'status', 'cluster', 'namespace', 'region', 'provider', 'label', 'image', 'reason', 'node']
/** Delay of the second page if a large screen shows all of the first one: longer than the time between two keys in the search box. */
const SECOND_PAGE_DELAY_MS = 300
/** Minimum interval between updates of live results, so that rows stay readable. */
const UPDATE_INTERVAL_MS = 400
/** Maximum number of queued changes; with more, the search runs again. */
const MAX_PENDING_CHANGES = 5_000

export type { Live, SearchState } from './searchState'

const queryPath = (q: string, limit: number, columns: string, parameters: string) =>
  `${API}/query?limit=${limit}&q=${encodeURIComponent(q)}${columns && `&columns=${encodeURIComponent(columns)}`}${parameters}`
const resultPath = (q: string, columns: string, isLive: boolean) =>
  queryPath(q, firstPageSize(window.innerHeight), columns, `&facets=${FACETS.join()}${isLive ? '&watch=true' : ''}`)
/** A query with a limit has no further pages. */
const resultAction = (q: string, event: string, data: unknown): Action =>
  event === 'done' && hasLimit(q) ? { type: 'event', event, data: { ...(data as SearchDone), cursor: undefined } } : { type: 'event', event, data }
const errorMessage = (error: unknown) => (error instanceof Error ? error.message : String(error))

export interface Search extends SearchState {
  /** Reports the rendered rows, which determine the loaded pages. */
  setVisibleRows: (first: number, last: number) => void
  /** Sends the request of a query that is being typed. `show` makes it the query of the page; it is called when the answer begins or is late. */
  prepare: (q: string, columns: string, show: () => void) => void
  /** Ends the request of the query that is being typed, unless it is `except`: the page does not change to it any more. */
  cancelPrepared: (except?: string) => void
}

/**
 * Runs a query and reads its stream; a newer query cancels the older one. In live mode, changes are shown as they arrive, or queued while
 * paused. `columns` are additional columns of hits, separated by commas.
 */
export function useSearch(q: string | undefined, live: Live, columns = ''): Search {
  const [state, dispatch] = useReducer(reduce, INITIAL_STATE)
  const pending = useRef<Changes>(new Map())
  const isPaused = useRef(live === 'paused')
  const restart = useRef<() => void>(undefined)
  const [pageRequest] = useState(() => new RequestSlot())
  const prepared = useRef<PreparedQuery>(undefined)
  const shownQuery = useRef<string>(undefined)
  const isLive = live !== 'off'

  const cancelPrepared = useCallback((except?: string) => {
    if (prepared.current?.q === except) return
    prepared.current?.cancel()
    prepared.current = undefined
  }, [])

  /** The stream of the prepared query, if it is the response that the page needs. */
  const takePrepared = (path: string, isNewQuery: boolean): ResultStream | undefined => {
    const query = prepared.current
    const stream = query?.take(path)
    // Another query replaces the typed one. A restart of the previous query, or other columns, do not: the page still has to show it.
    if (stream === undefined && !isNewQuery && query?.q !== shownQuery.current) return void query?.show()
    prepared.current = undefined
    if (stream === undefined) query?.cancel()
    return stream
  }

  // Before the page is painted: the page changes to a query whose answer has arrived, and shows its results, in one frame.
  useLayoutEffect(() => {
    const isNewQuery = shownQuery.current !== q
    shownQuery.current = q
    // The user has returned to the start page.
    if (q === undefined && isNewQuery) cancelPrepared()
    if (q === undefined) return
    let abort = new AbortController()
    let timer: ReturnType<typeof setTimeout> | undefined
    let retryDelayMs = 500
    const stop = () => {
      abort.abort()
      clearTimeout(timer)
      pageRequest.cancel()
    }
    const run = (isNewQuery = false) => {
      stop()
      abort = new AbortController()
      const { signal } = abort
      const path = resultPath(q, columns, isLive)
      const stream = takePrepared(path, isNewQuery) ?? new ResultStream(path)
      signal.addEventListener('abort', () => stream.cancel())
      pending.current = new Map()
      if (!stream.isShown) dispatch({ type: 'start', q })
      const handleEvent = (event: string, data: unknown) => {
        if (signal.aborted) return
        if (event === 'changed') pending.current.set(keyOf(data as Hit), data as Hit)
        else if (event === 'left') pending.current.set(keyOf(data as Hit), undefined)
        else if (event === 'behind') restartLater()
        else dispatch(resultAction(q, event, data))
        if (event === 'done') {
          retryDelayMs = 500
          if (isLive) dispatch({ type: 'following', isFollowing: true })
        }
        if (pending.current.size > MAX_PENDING_CHANGES) restartLater()
      }
      stream.read(handleEvent).then(
        () => {
          // The server ends live streams after ten minutes, and at once if the result cannot change.
          if (isLive && !signal.aborted) timer = setTimeout(() => run(), (retryDelayMs = Math.min(retryDelayMs * 2, 10_000)))
        },
        (error: unknown) => {
          if (signal.aborted) return
          if (viewErrorOf(error) !== undefined) dispatch({ type: 'error', message: errorMessage(error) })
          if (isLive || viewErrorOf(error) === undefined) timer = setTimeout(() => run(), (retryDelayMs = Math.min(retryDelayMs * 2, 10_000)))
        },
      )
    }
    // Too many changes to apply one by one: run the search again, or report it while paused.
    const restartLater = () => {
      abort.abort()
      if (isPaused.current) dispatch({ type: 'pendingChanges', pendingChanges: Infinity })
      else timer = setTimeout(() => run(), 1_000)
    }
    restart.current = run
    run(isNewQuery)
    return () => {
      restart.current = undefined
      stop()
    }
  }, [q, isLive, columns])

  const prepare = useCallback(
    (typed: string, typedColumns: string, show: () => void) => {
      cancelPrepared()
      // The user may have returned to the query of the page: its results are replaced as well.
      const showAnswer = (stream: ResultStream) => {
        if (typed === shownQuery.current) return restart.current?.()
        const events = isLive ? [] : stream.takeEvents()
        if (events.length === 0) return show()
        // The address and the results change in one rendering.
        flushSync(() => {
          show()
          dispatch({ type: 'start', q: typed })
          events.forEach((event) => dispatch(resultAction(typed, ...event)))
        })
      }
      prepared.current = new PreparedQuery(typed, resultPath(typed, typedColumns, isLive), showAnswer)
    },
    [isLive],
  )
  useEffect(() => () => cancelPrepared(), [])

  // The previous results stay on the page until the connection is restored.
  useOnConnectionRestored(() => restart.current?.())

  useEffect(() => {
    isPaused.current = live === 'paused'
    if (live === 'off') return
    const showChanges = () => {
      const changes = pending.current
      if (live === 'paused') dispatch({ type: 'pendingChanges', pendingChanges: changes.size })
      else if (changes.size > 0) {
        pending.current = new Map()
        dispatch({ type: 'changes', changes })
      }
    }
    const timer = setInterval(showChanges, UPDATE_INTERVAL_MS)
    return () => clearInterval(timer)
  }, [live])

  const overrun = state.pendingChanges === Infinity
  useEffect(() => {
    if (overrun && live === 'on') restart.current?.()
  }, [overrun, live])

  const { pages } = state
  const setVisibleRows = useCallback(
    (first: number, last: number) => {
      const page = findPageToLoad(pages, first, last)
      // One page at a time; other missing pages are requested after it.
      const slot = q !== undefined && !state.isStarting && page !== undefined ? pageRequest.take() : undefined
      if (q !== undefined && page !== undefined && slot) {
        const { cursor, nth } = page
        const finish = (action: Action | undefined) => {
          if (slot.release() && action) dispatch(action)
        }
        const load = () =>
          getJson<{ hits: Hit[]; cursor?: string }>(queryPath(q, PAGE_SIZE, columns, `&facets=&cursor=${encodeURIComponent(cursor)}`), slot.signal).then(
            ({ hits, cursor: next }) => finish(nth === undefined ? { type: 'nextPage', after: cursor, hits, cursor: next } : { type: 'restoredPage', nth, cursor, hits }),
            // While the connection is lost, a banner reports it; the search runs again when it is restored.
            (error: unknown) => finish(viewErrorOf(error) === undefined ? undefined : { type: 'pageError', message: errorMessage(error) }),
          )
        const timer = setTimeout(() => void load(), first > 0 ? 0 : SECOND_PAGE_DELAY_MS)
        slot.signal.addEventListener('abort', () => clearTimeout(timer))
      }
      dispatch({ type: 'visibleRows', first, last })
    },
    // Each received page triggers a check for missing pages.
    [pages, q, columns, state.receivedPages, state.isStarting],
  )
  return { ...state, setVisibleRows, prepare, cancelPrepared }
}
