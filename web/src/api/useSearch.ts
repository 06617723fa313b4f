import { useEffect, useReducer } from 'react'
import { getJson } from './client'
import { streamEvents } from './sse'
import type { Facets, Hit, Notice, SearchDone, Skipped } from './types'

const PATH = '/apis/search.crowsnest.io/v1alpha1/query'
const PAGE = 100

export interface SearchState {
  hits: Hit[]
  facets: Facets
  notices: Notice[]
  skipped: Skipped[]
  done: SearchDone | undefined
  error: string | undefined
  /** Loads the next page; absent when there is none or one is on its way. */
  more: (() => void) | undefined
}

interface State extends Omit<SearchState, 'more'> {
  /** The first event of a new answer replaces the old one: results never blank while typing. */
  fresh: boolean
  paging: boolean
}

type Action =
  | { type: 'start' }
  | { type: 'event'; event: string; data: unknown }
  | { type: 'error'; message: string }
  | { type: 'paging' }
  | { type: 'page'; hits: Hit[]; cursor: string | undefined }

const EMPTY: State = { hits: [], facets: {}, notices: [], skipped: [], done: undefined, error: undefined, fresh: true, paging: false }

function reduce(state: State, action: Action): State {
  switch (action.type) {
    case 'start':
      return { ...state, fresh: true, done: undefined, error: undefined, paging: false }
    case 'error':
      return { ...state, error: action.message }
    case 'paging':
      return { ...state, paging: true }
    case 'page':
      return {
        ...state,
        paging: false,
        hits: [...state.hits, ...action.hits],
        done: state.done && { ...state.done, cursor: action.cursor },
      } as State
    case 'event': {
      const base = state.fresh ? { ...EMPTY, fresh: false } : state
      switch (action.event) {
        case 'matches':
          return { ...base, hits: [...base.hits, ...(action.data as Hit[])] }
        case 'facets':
          return { ...base, facets: action.data as Facets }
        case 'notices':
          return { ...base, notices: action.data as Notice[] }
        case 'skipped':
          return { ...base, skipped: action.data as Skipped[] }
        case 'done':
          return { ...base, done: action.data as SearchDone }
        case 'error':
          return { ...base, error: (action.data as { message: string }).message }
        default:
          return base
      }
    }
  }
}

/** Runs a query and follows its stream; a newer query cancels the older one. */
export function useSearch(q: string): SearchState {
  const [state, dispatch] = useReducer(reduce, EMPTY)

  useEffect(() => {
    const abort = new AbortController()
    dispatch({ type: 'start' })
    const fail = (error: unknown) => {
      if (!abort.signal.aborted) dispatch({ type: 'error', message: error instanceof Error ? error.message : String(error) })
    }
    streamEvents(`${PATH}?limit=${PAGE}&q=${encodeURIComponent(q)}`, abort.signal, (event) =>
      dispatch({ type: 'event', event: event.event, data: JSON.parse(event.data) }),
    ).catch(fail)
    return () => abort.abort()
  }, [q])

  const cursor = state.done?.cursor
  const more =
    cursor === undefined || state.paging
      ? undefined
      : () => {
          dispatch({ type: 'paging' })
          const path = `${PATH}?limit=${PAGE}&q=${encodeURIComponent(q)}&cursor=${encodeURIComponent(cursor)}`
          getJson<{ hits: Hit[]; cursor?: string }>(path).then(
            (page) => dispatch({ type: 'page', hits: page.hits, cursor: page.cursor }),
            (error: unknown) => dispatch({ type: 'error', message: error instanceof Error ? error.message : String(error) }),
          )
        }
  const { fresh: _fresh, paging: _paging, ...shown } = state
  return { ...shown, more }
}
