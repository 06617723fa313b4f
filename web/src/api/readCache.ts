// Values that are read once and reused for a time.

/** Reads values by key. A failed read is repeated by the next call. */
export class ReadCache<T> {
  private readonly reads = new Map<string, { at: number; value: Promise<T> }>()

  /** `maxAgeMs`: time for which a value is reused; by default, until the page is closed. */
  constructor(
    private readonly readValue: (key: string) => Promise<T>,
    private readonly maxAgeMs = Infinity,
    private readonly now: () => number = Date.now,
  ) {}

  read(key: string): Promise<T> {
    const previous = this.reads.get(key)
    if (previous && this.now() - previous.at < this.maxAgeMs) return previous.value
    const read = { at: this.now(), value: this.readValue(key) }
    this.reads.set(key, read)
    read.value.catch(() => {
      if (this.reads.get(key) === read) this.reads.delete(key)
    })
    return read.value
  }
}
