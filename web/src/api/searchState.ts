// Reducer for the state of a search: events of its stream, further pages, and live changes. Has no side effects.
import { appendStreamedHits, applyChanges, appendPage, dropFarPages, NO_PAGES, restorePage, type Changes, type Pages } from './pages'
import type { Facets, Groups, Hit, LiveCounts, Notice, SearchDone, SkippedCluster } from './types'

export type Live = 'off' | 'on' | 'paused'

export interface SearchState {
  pages: Pages
  facets: Facets
  /** The query of the facets. Those of a new result arrive after its hits; until then, the previous ones stay. */
  countedQuery: string | undefined
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
  countedQuery: undefined,
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
      return { ...withoutPreviousFacets(state), error: action.message, isFollowing: false }
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
      return action.pendingChanges === state.pendingChanges ? state : { ...state, pendingChanges: action.pendingChanges }
    case 'following':
      return { ...state, isFollowing: action.isFollowing }
    case 'event':
      return reduceEvent(state, action.event, action.data)
  }
}

/** Events whose data is a part of the state with the same name. */
const PARTS = ['facets', 'groups', 'notices', 'skipped'] as const
type Parts = ReducerState['pendingParts']

/** Adds a part. Further notices may follow the first ones; any other part is replaced. */
function addPart(parts: Parts, name: (typeof PARTS)[number], data: unknown): Parts {
  return { ...parts, [name]: name === 'notices' ? [...(parts.notices ?? []), ...(data as Notice[])] : data }
}

function reduceEvent(state: ReducerState, event: string, data: unknown): ReducerState {
  const part = PARTS.find((name) => name === event)
  if (part !== undefined) {
    if (state.isStarting) return { ...state, pendingParts: addPart(state.pendingParts, part, data) }
    return { ...state, ...addPart({ notices: state.notices }, part, data), countedQuery: part === 'facets' ? state.startedQuery : state.countedQuery }
  }
  const base = state.isStarting && (event === 'matches' || event === 'summary' || event === 'done') ? startResult(state) : state
  switch (event) {
    case 'matches':
      return { ...base, pages: appendStreamedHits(base.pages, data as Hit[]) }
    case 'summary':
      return finishHits(base, data as SearchDone)
    case 'done':
      return finishHits(withoutPreviousFacets(base), data as SearchDone)
    case 'counts': {
      const { total, totalRelation, facets, groups, notices } = data as LiveCounts
      const done = base.done && { ...base.done, total, totalRelation }
      return { ...base, done, facets, countedQuery: base.query, groups: groups ?? base.groups, notices }
    }
    case 'error':
      return { ...withoutPreviousFacets(base), error: (data as { message: string }).message }
    default:
      return base
  }
}

/** Replaces the previous results by those of the query that has started. */
function startResult(state: ReducerState): ReducerState {
  const { startedQuery, receivedPages, failedPages, pendingParts } = state
  const countedQuery = pendingParts.facets ? startedQuery : state.countedQuery
  return { ...INITIAL_STATE, facets: state.facets, ...pendingParts, countedQuery, isStarting: false, startedQuery, query: startedQuery, receivedPages, failedPages }
}

/** The hits are complete. The time is that of their first report, also if counts and suggestions follow. */
function finishHits(state: ReducerState, summary: SearchDone): ReducerState {
  const done = { ...summary, tookMs: state.done?.tookMs ?? summary.tookMs }
  if (JSON.stringify(done) === JSON.stringify(state.done)) return state
  // After the summary, further pages may have been loaded.
  return { ...state, done, pages: state.done ? state.pages : { ...state.pages, next: done.cursor } }
}

/** Removes the facets of the previous result, if those of the shown one did not arrive. */
function withoutPreviousFacets(state: ReducerState): ReducerState {
  return state.isStarting || state.countedQuery === state.query ? state : { ...state, facets: {}, countedQuery: state.query }
}
