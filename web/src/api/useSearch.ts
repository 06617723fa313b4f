import { useCallback, useEffect, useReducer, useRef } from 'react'
import { getJson, reported } from './client'
import { parseJson } from './json'
import { FIRST, keyOf, missing, PAGE, rows, type Changes } from './pages'
import { limited } from './query'
import { EMPTY, reduce, type Action, type Live, type SearchState } from './searchState'
import { streamEvents } from './sse'
import type { Hit, SearchDone } from './types'
import { useRestored } from './useConnection'

export const API = '/apis/search.crowsnest.io/v1alpha1'
/** Facets next to the results, in display order. */
export const FACETS = ['kind', 'status', 'cluster', 'namespace', 'region', 'provider', 'label', 'image', 'reason', 'node']
/** Rows loaded ahead of the visible ones: few at first, more once the user scrolls. */
const AHEAD = 100
const FURTHER = PAGE
/** Minimum interval between updates: constantly moving rows cannot be read. */
const SHOW_EVERY = 400
/** Changes queued while paused; with more, the search runs again. */
const MOST_WAITING = 5_000

export type { Live, SearchState } from './searchState'

const path = (q: string, limit: number, columns: string, more: string) =>
  `${API}/query?limit=${limit}&q=${encodeURIComponent(q)}${columns && `&columns=${encodeURIComponent(columns)}`}${more}`
const explain = (error: unknown) => (error instanceof Error ? error.message : String(error))

/**
 * Runs a query and follows its stream; a newer query cancels the older one. `look` reports the visible rows, which determine the loaded
 * pages. In live mode, changes are shown as they arrive, or queued while paused. `columns` are additional columns of hits, separated
 * by commas.
 */
export function useSearch(q: string | undefined, live: Live, columns = ''): SearchState & { look: (first: number, last: number) => void } {
  const [state, dispatch] = useReducer(reduce, EMPTY)
  const waiting = useRef<Changes>(new Map())
  const paused = useRef(live === 'paused')
  const again = useRef<() => void>(undefined)
  /** The page request in progress. */
  const paging = useRef<AbortController>(undefined)
  const wanted = live !== 'off'

  useEffect(() => {
    if (q === undefined) return
    let abort = new AbortController()
    let timer: ReturnType<typeof setTimeout> | undefined
    let pause = 500
    const stop = () => {
      abort.abort()
      clearTimeout(timer)
      paging.current?.abort()
      paging.current = undefined
    }
    const begin = () => {
      stop()
      abort = new AbortController()
      const { signal } = abort
      waiting.current = new Map()
      dispatch({ type: 'start', q })
      const heard = (event: string, data: unknown) => {
        if (signal.aborted) return
        if (event === 'changed') waiting.current.set(keyOf(data as Hit), data as Hit)
        else if (event === 'left') waiting.current.set(keyOf(data as Hit), undefined)
        else if (event === 'behind') overrun()
        // A query with a limit has no further pages.
        else if (event === 'done' && limited(q)) dispatch({ type: 'event', event, data: { ...(data as SearchDone), cursor: undefined } })
        else dispatch({ type: 'event', event, data })
        if (event === 'done') {
          pause = 500
          if (wanted) dispatch({ type: 'following', following: true })
        }
        if (waiting.current.size > MOST_WAITING) overrun()
      }
      streamEvents(path(q, FIRST, columns, `&facets=${FACETS.join()}${wanted ? '&watch=true' : ''}`), signal, (event) => heard(event.event, parseJson(event.data))).then(
        () => {
          // The server ends live streams after ten minutes, and at once if the result cannot change.
          if (wanted && !signal.aborted) timer = setTimeout(begin, (pause = Math.min(pause * 2, 10_000)))
        },
        (error: unknown) => {
          if (signal.aborted) return
          if (reported(error) !== undefined) dispatch({ type: 'error', message: explain(error) })
          if (wanted || reported(error) === undefined) timer = setTimeout(begin, (pause = Math.min(pause * 2, 10_000)))
        },
      )
    }
    // Too many changes: run the search again when the page is visible.
    const overrun = () => {
      abort.abort()
      if (paused.current) dispatch({ type: 'waiting', waiting: Infinity })
      else timer = setTimeout(begin, 1_000)
    }
    again.current = begin
    begin()
    return () => {
      again.current = undefined
      stop()
    }
  }, [q, wanted, columns])

  // The previous results stay on the page until then.
  useRestored(() => again.current?.())

  useEffect(() => {
    paused.current = live === 'paused'
    if (live === 'off') return
    const show = () => {
      const changes = waiting.current
      if (live === 'paused') dispatch({ type: 'waiting', waiting: changes.size })
      else if (changes.size > 0) {
        waiting.current = new Map()
        dispatch({ type: 'changes', changes })
      }
    }
    const timer = setInterval(show, SHOW_EVERY)
    return () => clearInterval(timer)
  }, [live])

  const overrun = state.waiting === Infinity
  useEffect(() => {
    if (overrun && live === 'on') again.current?.()
  }, [overrun, live])

  const { pages } = state
  const look = useCallback(
    (first: number, last: number) => {
      const gone = missing(pages, first, last)
      const end = rows(pages)
      const cursor = gone === undefined ? (last > end - (first > 0 ? FURTHER : AHEAD) ? pages.next : undefined) : pages.pages[gone]?.cursor
      // One page at a time; other missing pages are requested after it.
      if (q !== undefined && !state.fresh && cursor !== undefined && paging.current === undefined) {
        const abort = new AbortController()
        paging.current = abort
        const came = (action: Action) => {
          if (abort.signal.aborted) return
          paging.current = undefined
          dispatch(action)
        }
        getJson<{ hits: Hit[]; cursor?: string }>(path(q, PAGE, columns, `&facets=&cursor=${encodeURIComponent(cursor)}`), abort.signal).then(
          ({ hits, cursor: next }) => came(gone === undefined ? { type: 'next', after: cursor, hits, cursor: next } : { type: 'again', nth: gone, cursor, hits }),
          (error: unknown) => (reported(error) === undefined ? (paging.current = undefined) : came({ type: 'error', message: explain(error) })),
        )
      }
      dispatch({ type: 'look', first, last })
    },
    // Each received page triggers a check, including a late one.
    [pages, q, columns, state.arrived, state.fresh],
  )
  return { ...state, look }
}
