// A slot for one request at a time.

export interface SlotRequest {
  signal: AbortSignal
  /** Frees the slot at the end of the request. False if the request was cancelled: its result is ignored, and the slot may have a newer request. */
  release: () => boolean
}

export class RequestSlot {
  private current: AbortController | undefined

  /** Takes the slot; undefined while a request is in progress. */
  take(): SlotRequest | undefined {
    if (this.current) return undefined
    const abort = new AbortController()
    this.current = abort
    const release = () => {
      if (abort.signal.aborted) return false
      this.current = undefined
      return true
    }
    return { signal: abort.signal, release }
  }

  /** Cancels the request in progress and frees the slot. */
  cancel(): void {
    this.current?.abort()
    this.current = undefined
  }
}
