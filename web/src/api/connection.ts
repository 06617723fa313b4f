// State of the connection to the server. After a request without a response, the connection is checked until the server responds.

/** Event dispatched on the window when the server does not respond to a request. */
export const UNREACHABLE_EVENT = 'crowsnest-unreachable'

const MIN_RETRY_DELAY_MS = 1_000
const MAX_RETRY_DELAY_MS = 10_000

export class Connection {
  /** True while the server does not respond. */
  isLost = false
  private isChecking = false
  private retryDelayMs = MIN_RETRY_DELAY_MS
  private timer: ReturnType<typeof setTimeout> | undefined
  private readonly listeners = new Set<() => void>()
  private readonly restoredListeners = new Set<() => void>()

  /** `probe` sends a request; its result is true if the server responds, even with an error. */
  constructor(private readonly probe: () => Promise<boolean>) {}

  /** Checks the connection until the server responds; a check in progress continues. */
  startChecking(): void {
    if (this.isChecking) return
    this.isChecking = true
    void this.check()
  }

  /** Checks a lost connection immediately instead of after the retry delay. */
  checkNow(): void {
    if (!this.isLost || this.timer === undefined) return
    this.retryDelayMs = MIN_RETRY_DELAY_MS
    void this.check()
  }

  private async check(): Promise<void> {
    clearTimeout(this.timer)
    this.timer = undefined
    const responds = await this.probe()
    const wasLost = this.isLost
    this.isLost = !responds
    if (responds) {
      this.isChecking = false
      this.retryDelayMs = MIN_RETRY_DELAY_MS
    } else {
      this.timer = setTimeout(() => void this.check(), this.retryDelayMs)
      this.retryDelayMs = Math.min(this.retryDelayMs * 2, MAX_RETRY_DELAY_MS)
    }
    if (wasLost === this.isLost) return
    this.listeners.forEach((listener) => listener())
    if (responds) this.restoredListeners.forEach((listener) => listener())
  }

  subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener)
    return () => this.listeners.delete(listener)
  }

  /** Calls back each time a lost connection is restored. */
  onRestored(listener: () => void): () => void {
    this.restoredListeners.add(listener)
    return () => this.restoredListeners.delete(listener)
  }
}
