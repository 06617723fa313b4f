// Reducer for the state of a search: events of its stream, further pages, and live changes. Pure.
import { appendStreamedHits, applyChanges, appendPage, dropFarPages, NO_PAGES, restorePage, type Changes, type Pages } from './pages'
import type { Facets, Groups, Hit, Notice, SearchDone, SkippedCluster } from './types'

export type Live = 'off' | 'on' | 'paused'

export interface SearchState {
  pages: Pages
  facets: Facets
  groups: Groups | undefined
  notices: Notice[]
  skipped: SkippedCluster[]
  done: SearchDone | undefined
  /** The query of the shown results; while a new one has no results yet, the previous one. */
  query: string | undefined
  error: string | undefined
  /** Why the last page could not be loaded; undefined after another one was loaded. */
  pageError: string | undefined
  /** Number of pages that could not be loaded. */
  failedPages: number
  /** Keys of the hits that changed last, for highlighting. */
  changedKeys: ReadonlySet<string>
  /** Number of queued changes; Infinity if there are too many to show. */
  pendingChanges: number
  /** The stream delivers live changes. */
  isFollowing: boolean
}

export interface ReducerState extends SearchState {
  /** A new query has started. Its first hits, or the end of its response, replace the previous results, so results do not flicker while typing. */
  isStarting: boolean
  /** The query that has started last. */
  startedQuery: string | undefined
  /** Parts of the new response that arrived before its first hits. */
  pendingParts: Partial<Pick<SearchState, 'facets' | 'groups' | 'notices' | 'skipped'>>
  /** Number of pages received; each triggers a check for missing pages. */
  receivedPages: number
}

export type Action =
  | { type: 'start'; q: string }
  | { type: 'event'; event: string; data: unknown }
  | { type: 'error'; message: string }
  | { type: 'pageError'; message: string }
  | { type: 'nextPage'; after: string; hits: Hit[]; cursor: string | undefined }
  | { type: 'restoredPage'; nth: number; cursor: string | undefined; hits: Hit[] }
  | { type: 'visibleRows'; first: number; last: number }
  | { type: 'changes'; changes: Changes }
  | { type: 'pendingChanges'; pendingChanges: number }
  | { type: 'following'; isFollowing: boolean }

export const INITIAL_STATE: ReducerState = {
  pages: NO_PAGES,
  facets: {},
  groups: undefined,
  notices: [],
  skipped: [],
  done: undefined,
  query: undefined,
  error: undefined,
  pageError: undefined,
  failedPages: 0,
  changedKeys: new Set(),
  pendingChanges: 0,
  isFollowing: false,
  isStarting: true,
  startedQuery: undefined,
  pendingParts: {},
  receivedPages: 0,
}

export function reduce(state: ReducerState, action: Action): ReducerState {
  switch (action.type) {
    case 'start':
      return { ...state, pages: { ...state.pages, next: undefined }, isStarting: true, startedQuery: action.q, pendingParts: {}, done: undefined, error: undefined, pageError: undefined, pendingChanges: 0, isFollowing: false }
    case 'error':
      return { ...state, error: action.message, isFollowing: false }
    case 'pageError':
      return { ...state, pageError: action.message, failedPages: state.failedPages + 1 }
    case 'nextPage':
      // With another cursor, the page belongs to an earlier response or is a duplicate.
      return {
        ...state,
        pageError: undefined,
        receivedPages: state.receivedPages + 1,
        pages: action.after === state.pages.next ? appendPage(state.pages, action.hits, action.cursor) : state.pages,
      }
    case 'restoredPage':
      return {
        ...state,
        pageError: undefined,
        receivedPages: state.receivedPages + 1,
        pages: state.pages.pages[action.nth]?.cursor === action.cursor ? restorePage(state.pages, action.nth, action.hits) : state.pages,
      }
    case 'visibleRows': {
      const pages = dropFarPages(state.pages, action.first, action.last)
      return pages === state.pages ? state : { ...state, pages }
    }
    case 'changes':
      return { ...state, pages: applyChanges(state.pages, action.changes), changedKeys: new Set(action.changes.keys()), pendingChanges: 0 }
    case 'pendingChanges':
      return { ...state, pendingChanges: action.pendingChanges }
    case 'following':
      return { ...state, isFollowing: action.isFollowing }
    case 'event':
      return reduceEvent(state, action.event, action.data)
  }
}

/** Events whose data replaces the part of the state with the same name. */
const PARTS = ['facets', 'groups', 'notices', 'skipped'] as const

function reduceEvent(state: ReducerState, event: string, data: unknown): ReducerState {
  const part = PARTS.find((name) => name === event)
  if (part !== undefined) return state.isStarting ? { ...state, pendingParts: { ...state.pendingParts, [part]: data } } : { ...state, [part]: data }
  const base = state.isStarting && (event === 'matches' || event === 'done') ? { ...INITIAL_STATE, ...state.pendingParts, isStarting: false, startedQuery: state.startedQuery, query: state.startedQuery, receivedPages: state.receivedPages, failedPages: state.failedPages } : state
  switch (event) {
    case 'matches':
      return { ...base, pages: appendStreamedHits(base.pages, data as Hit[]) }
    case 'done': {
      const done = data as SearchDone
      return { ...base, done, pages: { ...base.pages, next: done.cursor } }
    }
    case 'counts': {
      const counts = data as { total: number; facets: Facets; groups?: Groups }
      const done = base.done && { ...base.done, total: counts.total }
      return { ...base, done, facets: counts.facets, groups: counts.groups ?? base.groups }
    }
    case 'error':
      return { ...base, error: (data as { message: string }).message }
    default:
      return base
  }
}
