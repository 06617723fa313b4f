// The request of a query that is being typed. It is sent before the page shows the query, and the page shows the query when its answer begins:
// a key leads to two paints, of the text and of the results, and not to one for each step between them.
import { parseJson } from './json'
import { streamEvents } from './sse'

/** Time without an answer after which the page shows the query, and that it is searching. */
export const SHOW_DELAY_MS = 100
/** Time that the end of a result may follow its first hits, to be shown with them. */
export const END_DELAY_MS = 10

export type ResultEvent = [event: string, data: unknown]

/** The events of a query's response. They are kept until the answer begins, with hits or an error, and until they are read. */
export class ResultStream {
  readonly path: string
  /** The first events were taken. */
  isShown = false
  private readonly abort = new AbortController()
  private readonly onAnswer: () => void
  private readonly end: Promise<void>
  private kept: ResultEvent[] = []
  private hasAnswer = false
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

  /** The events with which the answer begins; none before. They are not passed to `read`. */
  takeEvents(): ResultEvent[] {
    const events = this.hasAnswer ? this.kept.splice(0) : []
    this.isShown ||= events.length > 0
    return events
  }

  /** Ends the request; no event is delivered any more. */
  cancel(): void {
    this.abort.abort()
  }

  private receive(event: string, data: unknown): void {
    this.kept.push([event, data])
    // After the other events that have arrived with it.
    if (event === 'done' || event === 'error') queueMicrotask(() => this.beginAnswer())
    else if (event === 'matches') setTimeout(() => this.beginAnswer(), END_DELAY_MS)
    this.deliver()
  }

  private beginAnswer(): void {
    if (this.hasAnswer || this.abort.signal.aborted) return
    this.hasAnswer = true
    this.onAnswer()
    this.deliver()
  }

  private deliver(): void {
    while (this.hasAnswer && this.onEvent && !this.abort.signal.aborted) {
      const next = this.kept.shift()
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

  /** `onShow` makes the page show the query. It is called once: when the answer begins, or when it is late. */
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
