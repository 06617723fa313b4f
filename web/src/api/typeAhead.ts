// Pacing of requests while the user types. There is no fixed delay: the first key after a pause sends its request at once.

/** Minimum interval between requests. It is longer than the repeat interval of a held key (33 ms), and shorter than the interval of a fast typist. */
export const MIN_INTERVAL_MS = 40
/** Time after which a request in flight no longer delays the newest value. Its sender aborts it when it sends the next one. */
export const MAX_WAIT_MS = 200

/** Sends values as they are typed, one request at a time. Of the values that are offered meanwhile, only the newest is sent. */
export class TypeAhead<T> {
  private waiting: { value: T } | undefined
  private isInFlight = false
  private sentAt = -Infinity
  private timer: ReturnType<typeof setTimeout> | undefined
  private readonly send: (value: T) => void

  /** `send` starts the request of a value and aborts the previous one. The end of the request is reported by `complete`. */
  constructor(send: (value: T) => void) {
    this.send = send
  }

  /** Sends this value now, or as soon as the request in flight has ended, unless a newer value is offered before. */
  offer(value: T): void {
    this.waiting = { value }
    this.schedule()
  }

  /** Reports that the request of the value that was sent last has ended. */
  complete(): void {
    this.isInFlight = false
    this.schedule()
  }

  /** Drops the value that waits, if there is one. */
  cancel(): void {
    this.waiting = undefined
    clearTimeout(this.timer)
  }

  private schedule(): void {
    clearTimeout(this.timer)
    if (!this.waiting) return
    const delayMs = this.sentAt + (this.isInFlight ? MAX_WAIT_MS : MIN_INTERVAL_MS) - performance.now()
    if (delayMs > 0) this.timer = setTimeout(() => this.sendWaiting(), delayMs)
    else this.sendWaiting()
  }

  private sendWaiting(): void {
    if (!this.waiting) return
    const { value } = this.waiting
    this.waiting = undefined
    this.isInFlight = true
    this.sentAt = performance.now()
    this.send(value)
  }
}
