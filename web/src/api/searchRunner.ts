// Runs the query that a page shows and reads its stream, with live changes, and prepares the query that is being typed.
import { viewErrorOf } from './client'
import { keyOf, type Changes } from './pages'
import { PreparedQuery, ResultStream } from './preparedQuery'
import { hasLimit } from './query'
import { RequestSlot } from './requestSlot'
import { resultPath, type RequestedQuery } from './searchApi'
import type { Action } from './searchState'
import type { Hit, SearchDone } from './types'

/** Maximum number of queued changes; with more, the search runs again. */
export const MAX_PENDING_CHANGES = 5_000
/** Delays of the first and of later attempts to continue a stream that has ended, in milliseconds. */
export const MIN_RETRY_DELAY_MS = 1_000
const MAX_RETRY_DELAY_MS = 10_000
/** Delay of a search that runs again because of too many changes. */
const RERUN_DELAY_MS = 1_000

export const errorMessage = (error: unknown) => (error instanceof Error ? error.message : String(error))

/** A query with a limit has no further pages. */
const resultAction = (q: string, event: string, data: unknown): Action =>
  (event === 'summary' || event === 'done') && hasLimit(q) ? { type: 'event', event, data: { ...(data as SearchDone), cursor: undefined } } : { type: 'event', event, data }

/** Runs one query at a time and dispatches its events. A newer query cancels the older one, whose later events are ignored. */
export class SearchRunner {
  /** Slot of the requests for further pages of the running query. */
  readonly pageRequest = new RequestSlot()
  private readonly dispatch: (action: Action) => void
  private readonly renderNow: (change: () => void) => void
  /** The query of the page; undefined on the start page. It stays while the query is stopped. */
  private pageQuery: string | undefined
  private running: RequestedQuery | undefined
  private abort = new AbortController()
  private timer: ReturnType<typeof setTimeout> | undefined
  private retryDelayMs = MIN_RETRY_DELAY_MS
  private prepared: PreparedQuery | undefined
  private pending: Changes = new Map()
  private isPaused = false
  /** The stream has ended while paused, because of too many changes. */
  private isOverrun = false

  /** `renderNow` applies the updates of `change` in one rendering. */
  constructor(dispatch: (action: Action) => void, renderNow: (change: () => void) => void) {
    this.dispatch = dispatch
    this.renderNow = renderNow
  }

  /** Runs the query that the page shows from now on; undefined on the start page. */
  show(query: RequestedQuery | undefined): void {
    this.stop()
    const isNewQuery = query?.q !== this.pageQuery
    this.pageQuery = query?.q
    this.running = query
    this.retryDelayMs = MIN_RETRY_DELAY_MS
    if (query !== undefined) this.run(query, isNewQuery)
    // The user has returned to the start page.
    else if (isNewQuery) this.cancelPrepared()
  }

  /** Ends the requests of the running query. */
  stop(): void {
    this.running = undefined
    this.abortRun()
  }

  /** Runs the query of the page again. */
  restart(): void {
    if (this.running) this.run(this.running, false)
  }

  /** Sends the request of a query that is being typed. `show` makes it the query of the page; it is called when the answer begins or is late. */
  prepare(query: RequestedQuery, show: () => void): void {
    this.cancelPrepared()
    const { q, isLive } = query
    const showAnswer = (stream: ResultStream) => {
      // The user may have returned to the query of the page: its results are replaced as well.
      if (q === this.pageQuery) return this.restart()
      const events = isLive ? [] : stream.takeEvents()
      if (events.length === 0) return show()
      // The address and the results change in one rendering.
      this.renderNow(() => {
        show()
        this.dispatch({ type: 'start', q })
        events.forEach((event) => this.dispatch(resultAction(q, ...event)))
      })
    }
    this.prepared = new PreparedQuery(q, resultPath(query), showAnswer)
  }

  /** Aborts the request of the query that is being typed, unless it is `except`, so that the page does not show it later. */
  readonly cancelPrepared = (except?: string): void => {
    if (this.prepared?.q === except) return
    this.prepared?.cancel()
    this.prepared = undefined
  }

  /** While paused, live changes are queued. */
  setPaused(isPaused: boolean): void {
    this.isPaused = isPaused
    if (!isPaused && this.isOverrun) this.restart()
  }

  /** Applies the changes that have arrived, or reports their number while paused. */
  showChanges(): void {
    // Further changes are unknown; the report about them stays.
    if (this.isOverrun) return
    const changes = this.pending
    if (this.isPaused) this.dispatch({ type: 'pendingChanges', pendingChanges: changes.size })
    else if (changes.size > 0) {
      this.pending = new Map()
      this.dispatch({ type: 'changes', changes })
    }
  }

  private run(query: RequestedQuery, isNewQuery: boolean): void {
    this.abortRun()
    const abort = new AbortController()
    this.abort = abort
    const path = resultPath(query)
    const prepared = this.takePrepared(path, isNewQuery)
    if (abort.signal.aborted) return
    const stream = prepared ?? new ResultStream(path)
    abort.signal.addEventListener('abort', () => stream.cancel())
    this.pending = new Map()
    this.isOverrun = false
    if (!stream.isShown) this.dispatch({ type: 'start', q: query.q })
    const handleEvent = (event: string, data: unknown) => {
      if (!abort.signal.aborted) this.handleEvent(query, event, data)
    }
    const handleEnd = (error?: unknown) => {
      if (!abort.signal.aborted) this.handleEnd(query, error)
    }
    stream.read(handleEvent).then(() => handleEnd(), handleEnd)
  }

  private abortRun(): void {
    this.abort.abort()
    clearTimeout(this.timer)
    this.pageRequest.cancel()
  }

  /** The stream of the prepared query, if it is the response that the page needs. */
  private takePrepared(path: string, isNewQuery: boolean): ResultStream | undefined {
    const query = this.prepared
    const stream = query?.take(path)
    // Another query replaces the typed one. A restart of the previous query, or other columns, do not: the page still has to show it.
    if (stream === undefined && !isNewQuery && query?.q !== this.pageQuery) return void query?.show()
    this.prepared = undefined
    if (stream === undefined) query?.cancel()
    return stream
  }

  private handleEvent({ q, isLive }: RequestedQuery, event: string, data: unknown): void {
    if (event === 'changed') this.pending.set(keyOf(data as Hit), data as Hit)
    else if (event === 'left') this.pending.set(keyOf(data as Hit), undefined)
    else if (event === 'behind') this.rerunLater()
    else this.dispatch(resultAction(q, event, data))
    if (event === 'done') {
      this.retryDelayMs = MIN_RETRY_DELAY_MS
      if (isLive) this.dispatch({ type: 'following', isFollowing: true })
    }
    if (this.pending.size > MAX_PENDING_CHANGES) this.rerunLater()
  }

  /** The server ends live streams after ten minutes, and at once if the result cannot change. */
  private handleEnd({ isLive }: RequestedQuery, error: unknown): void {
    const viewError = viewErrorOf(error)
    if (viewError !== undefined) this.dispatch({ type: 'error', message: errorMessage(viewError) })
    const isConnectionLost = error !== undefined && viewError === undefined
    if (!isLive && !isConnectionLost) return
    this.timer = setTimeout(() => this.restart(), this.retryDelayMs)
    this.retryDelayMs = Math.min(this.retryDelayMs * 2, MAX_RETRY_DELAY_MS)
  }

  /** Too many changes to apply one by one: runs the search again, or reports them while paused. */
  private rerunLater(): void {
    this.abort.abort()
    this.isOverrun = this.isPaused
    if (this.isPaused) this.dispatch({ type: 'pendingChanges', pendingChanges: Infinity })
    else this.timer = setTimeout(() => this.restart(), RERUN_DELAY_MS)
  }
}
