// The request of a query that is being typed. It is sent at once, but the page shows the query only when the first results arrive. A key press
// therefore causes two paints: one of the text in the search box, and one of the results.
import { parseJson } from './json'
import { streamEvents } from './sse'

/** Time without an answer after which the page shows the query and a progress message. */
export const SHOW_DELAY_MS = 100
/** Time after the first hits within which the summary must arrive to be shown together with them. */
export const SUMMARY_DELAY_MS = 10

export type ResultEvent = [event: string, data: unknown]

/** The events of a query's response. They are buffered until the answer begins (with hits or an error) and a reader is registered. */
export class ResultStream {
  readonly path: string
  /** True once `takeEvents` has returned events: the page shows them. */
  isShown = false
  private readonly abort = new AbortController()
  private readonly onAnswer: () => void
  private readonly end: Promise<void>
  private buffer: ResultEvent[] = []
  private hasAnswer = false
  /** Runs from the first hits until the answer begins. */
  private summaryTimer: ReturnType<typeof setTimeout> | undefined
  private onEvent: ((...event: ResultEvent) => void) | undefined

  /** Sends the request. `onAnswer` is called once, when the answer begins. */
  constructor(path: string, onAnswer: () => void = () => undefined) {
    this.path = path
    this.onAnswer = onAnswer
    this.end = streamEvents(path, this.abort.signal, ({ event, data }) => this.receive(event, parseJson(data)))
    const finish = () => this.beginAnswer()
    this.end.then(finish, finish)
  }

  /** Passes the events of the response to `onEvent`. The promise ends with the response. */
  read(onEvent: (...event: ResultEvent) => void): Promise<void> {
    this.onEvent = onEvent
    this.deliver()
    return this.end
  }

  /** Removes and returns the events that are buffered when the answer has begun; none before that. `read` does not receive them. */
  takeEvents(): ResultEvent[] {
    const events = this.hasAnswer ? this.buffer.splice(0) : []
    this.isShown ||= events.length > 0
    return events
  }

  /** Aborts the request. No further event is delivered. */
  cancel(): void {
    this.abort.abort()
    clearTimeout(this.summaryTimer)
  }

  private receive(event: string, data: unknown): void {
    this.buffer.push([event, data])
    // A microtask runs after the other events of the same chunk are received. The summary follows the last hits; facets may take longer.
    if (event === 'summary' || event === 'done' || event === 'error') queueMicrotask(() => this.beginAnswer())
    else if (event === 'matches' && !this.hasAnswer) this.summaryTimer ??= setTimeout(() => this.beginAnswer(), SUMMARY_DELAY_MS)
    this.deliver()
  }

  private beginAnswer(): void {
    if (this.hasAnswer || this.abort.signal.aborted) return
    this.hasAnswer = true
    clearTimeout(this.summaryTimer)
    this.onAnswer()
    this.deliver()
  }

  private deliver(): void {
    while (this.hasAnswer && this.onEvent && !this.abort.signal.aborted) {
      const next = this.buffer.shift()
      if (!next) return
      this.onEvent(...next)
    }
  }
}

/** A query whose request is sent, but which the page does not show yet. */
export class PreparedQuery {
  readonly q: string
  private readonly stream: ResultStream
  private readonly timer: ReturnType<typeof setTimeout>
  private onShow: ((stream: ResultStream) => void) | undefined

  /** `onShow` makes the page show the query. It is called once: when the answer begins, or after SHOW_DELAY_MS. */
  constructor(q: string, path: string, onShow: (stream: ResultStream) => void) {
    this.q = q
    this.onShow = onShow
    this.timer = setTimeout(() => this.show(), SHOW_DELAY_MS)
    this.stream = new ResultStream(path, () => this.show())
  }

  show(): void {
    this.release()?.(this.stream)
  }

  /** The stream for the page that now shows the query; undefined if the page needs a response of another path. */
  take(path: string): ResultStream | undefined {
    if (path !== this.stream.path) return undefined
    this.release()
    return this.stream
  }

  /** Ends the request. The page does not show the query. */
  cancel(): void {
    this.release()
    this.stream.cancel()
  }

  private release(): ((stream: ResultStream) => void) | undefined {
    const onShow = this.onShow
    this.onShow = undefined
    clearTimeout(this.timer)
    return onShow
  }
}
