// The connection to the server. A request that finds no server raises a suspicion; requests to the session endpoint confirm it, and
// report when the server responds again.

/** Dispatched on the window when a request finds no server. */
export const UNREACHABLE = 'crowsnest-unreachable'

const FIRST_PAUSE = 1_000
const LONGEST_PAUSE = 10_000

export class Connection {
  /** The server does not respond. */
  lost = false
  private checking = false
  private pause = FIRST_PAUSE
  private timer: ReturnType<typeof setTimeout> | undefined
  private readonly readers = new Set<() => void>()
  private readonly restored = new Set<() => void>()

  /** `probe` is true if the server responds, whatever the response. */
  constructor(private readonly probe: () => Promise<boolean>) {}

  /** Checks the connection until the server responds; a check in progress continues. */
  suspect(): void {
    if (this.checking) return
    this.checking = true
    void this.check()
  }

  /** Checks a lost connection now instead of after the pause. */
  hurry(): void {
    if (!this.lost || this.timer === undefined) return
    this.pause = FIRST_PAUSE
    void this.check()
  }

  private async check(): Promise<void> {
    clearTimeout(this.timer)
    this.timer = undefined
    const responds = await this.probe()
    const was = this.lost
    this.lost = !responds
    if (responds) {
      this.checking = false
      this.pause = FIRST_PAUSE
    } else {
      this.timer = setTimeout(() => void this.check(), this.pause)
      this.pause = Math.min(this.pause * 2, LONGEST_PAUSE)
    }
    if (was === this.lost) return
    this.readers.forEach((reader) => reader())
    if (responds) this.restored.forEach((reader) => reader())
  }

  subscribe = (reader: () => void): (() => void) => {
    this.readers.add(reader)
    return () => this.readers.delete(reader)
  }

  /** Calls back each time a lost connection is restored. */
  onRestored(reader: () => void): () => void {
    this.restored.add(reader)
    return () => this.restored.delete(reader)
  }
}
