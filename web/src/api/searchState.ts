// State of a search: the events of its stream, further pages, and live changes. Pure.
import { append, change, follow, letGo, NONE, restore, type Changes, type Pages } from './pages'
import type { Facets, Groups, Hit, Notice, SearchDone, Skipped } from './types'

export type Live = 'off' | 'on' | 'paused'

export interface SearchState {
  pages: Pages
  facets: Facets
  groups: Groups | undefined
  notices: Notice[]
  skipped: Skipped[]
  done: SearchDone | undefined
  /** The query of the shown results; while a new one has no results yet, the previous one. */
  of: string | undefined
  error: string | undefined
  /** Hits that changed last, for highlighting. */
  changed: ReadonlySet<string>
  /** Queued changes. */
  waiting: number
  /** The stream delivers live changes. */
  following: boolean
}

export interface State extends SearchState {
  /** A new query has started. Its first hits, or the end of its response, replace the previous results, so results do not flicker while typing. */
  fresh: boolean
  /** The query that has started last. */
  asked: string | undefined
  /** What the new response has sent before its first hits. */
  ahead: Partial<Pick<SearchState, 'facets' | 'groups' | 'notices' | 'skipped'>>
  /** Number of pages received; each triggers a check for missing pages. */
  arrived: number
}

export type Action =
  | { type: 'start'; q: string }
  | { type: 'event'; event: string; data: unknown }
  | { type: 'error'; message: string }
  | { type: 'next'; after: string; hits: Hit[]; cursor: string | undefined }
  | { type: 'again'; nth: number; cursor: string | undefined; hits: Hit[] }
  | { type: 'look'; first: number; last: number }
  | { type: 'changes'; changes: Changes }
  | { type: 'waiting'; waiting: number }
  | { type: 'following'; following: boolean }

export const EMPTY: State = {
  pages: NONE,
  facets: {},
  groups: undefined,
  notices: [],
  skipped: [],
  done: undefined,
  of: undefined,
  error: undefined,
  changed: new Set(),
  waiting: 0,
  following: false,
  fresh: true,
  asked: undefined,
  ahead: {},
  arrived: 0,
}

export function reduce(state: State, action: Action): State {
  switch (action.type) {
    case 'start':
      return { ...state, pages: { ...state.pages, next: undefined }, fresh: true, asked: action.q, ahead: {}, done: undefined, error: undefined, waiting: 0, following: false }
    case 'error':
      return { ...state, error: action.message, following: false }
    case 'next':
      // Otherwise it belongs to an earlier response, or is a duplicate.
      return {
        ...state,
        arrived: state.arrived + 1,
        pages: action.after === state.pages.next ? follow(state.pages, action.hits, action.cursor) : state.pages,
      }
    case 'again':
      return {
        ...state,
        arrived: state.arrived + 1,
        pages: state.pages.pages[action.nth]?.cursor === action.cursor ? restore(state.pages, action.nth, action.hits) : state.pages,
      }
    case 'look': {
      const pages = letGo(state.pages, action.first, action.last)
      return pages === state.pages ? state : { ...state, pages }
    }
    case 'changes':
      return { ...state, pages: change(state.pages, action.changes), changed: new Set(action.changes.keys()), waiting: 0 }
    case 'waiting':
      return { ...state, waiting: action.waiting }
    case 'following':
      return { ...state, following: action.following }
    case 'event':
      return received(state, action.event, action.data)
  }
}

/** Events that are a part of the state. */
const PARTS = ['facets', 'groups', 'notices', 'skipped'] as const

function received(state: State, event: string, data: unknown): State {
  const part = PARTS.find((name) => name === event)
  if (part !== undefined) return state.fresh ? { ...state, ahead: { ...state.ahead, [part]: data } } : { ...state, [part]: data }
  const base = state.fresh && (event === 'matches' || event === 'done') ? { ...EMPTY, ...state.ahead, fresh: false, asked: state.asked, of: state.asked, arrived: state.arrived } : state
  switch (event) {
    case 'matches':
      return { ...base, pages: append(base.pages, data as Hit[]) }
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
