import { useCallback, useEffect, useLayoutEffect, useReducer, useState } from 'react'
import { flushSync } from 'react-dom'
import { getJson, viewErrorOf } from './client'
import { dropFarPages, findPageToLoad, PAGE_SIZE } from './pages'
import { pagePath } from './searchApi'
import { errorMessage, SearchRunner } from './searchRunner'
import { INITIAL_STATE, reduce, type Action, type Live, type SearchState } from './searchState'
import type { Hit } from './types'
import { useOnConnectionRestored } from './useConnection'

/** Delay of the second page if a large screen shows all of the first one: longer than the time between two keys in the search box. */
const SECOND_PAGE_DELAY_MS = 300
/** Minimum interval between updates of live results, so that rows stay readable. */
const UPDATE_INTERVAL_MS = 400

export interface Search extends SearchState {
  /** Reports the rendered rows, which determine the loaded pages. */
  setVisibleRows: (first: number, last: number) => void
  /** Sends the request of a query that is being typed. `show` makes it the query of the page; it is called when the answer begins or is late. */
  prepare: (q: string, columns: string, show: () => void) => void
  /** Aborts the request of the query that is being typed, unless it is `except`, so that the page does not show it later. */
  cancelPrepared: (except?: string) => void
}

/**
 * Runs a query and reads its stream; a newer query cancels the older one. In live mode, changes are shown as they arrive, or queued while
 * paused. `columns` are additional columns of hits, separated by commas.
 */
export function useSearch(q: string | undefined, live: Live, columns = ''): Search {
  const [state, dispatch] = useReducer(reduce, INITIAL_STATE)
  const [runner] = useState(() => new SearchRunner(dispatch, flushSync))
  const isLive = live !== 'off'

  // A layout effect runs before the page is painted, so that a query whose answer has arrived is shown with its results in one frame.
  useLayoutEffect(() => {
    runner.show(q === undefined ? undefined : { q, columns, isLive })
    return () => runner.stop()
  }, [runner, q, isLive, columns])

  const prepare = useCallback((q: string, columns: string, show: () => void) => runner.prepare({ q, columns, isLive }, show), [runner, isLive])
  useEffect(() => () => runner.cancelPrepared(), [runner])

  // The previous results stay on the page until the connection is restored.
  useOnConnectionRestored(() => runner.restart())

  useEffect(() => {
    runner.setPaused(live === 'paused')
    if (live === 'off') return
    const timer = setInterval(() => runner.showChanges(), UPDATE_INTERVAL_MS)
    return () => clearInterval(timer)
  }, [runner, live])

  const { pages } = state
  const setVisibleRows = useCallback(
    (first: number, last: number) => {
      const page = findPageToLoad(pages, first, last)
      // One page at a time; other missing pages are requested after it.
      const slot = q !== undefined && !state.isStarting && page !== undefined ? runner.pageRequest.take() : undefined
      if (q !== undefined && page !== undefined && slot) {
        const { cursor, nth } = page
        const finish = (action: Action | undefined) => {
          if (slot.release() && action) dispatch(action)
        }
        const load = () =>
          getJson<{ hits: Hit[]; cursor?: string }>(pagePath(q, columns, cursor, PAGE_SIZE), slot.signal).then(
            ({ hits, cursor: next }) => finish(nth === undefined ? { type: 'nextPage', after: cursor, hits, cursor: next } : { type: 'restoredPage', nth, cursor, hits }),
            // While the connection is lost, a banner reports it; the search runs again when it is restored.
            (error: unknown) => finish(viewErrorOf(error) === undefined ? undefined : { type: 'pageError', message: errorMessage(error) }),
          )
        const timer = setTimeout(() => void load(), first > 0 ? 0 : SECOND_PAGE_DELAY_MS)
        slot.signal.addEventListener('abort', () => clearTimeout(timer))
      }
      if (dropFarPages(pages, first, last) !== pages) dispatch({ type: 'visibleRows', first, last })
    },
    // Each received page triggers a check for missing pages.
    [runner, pages, q, columns, state.receivedPages, state.isStarting],
  )
  return { ...state, setVisibleRows, prepare, cancelPrepared: runner.cancelPrepared }
}
