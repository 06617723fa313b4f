// Values that are created again after a failure. Has no side effects.

export interface Renewable<T> {
  current: () => T
  /** Creates a new value if the current one has failed; otherwise keeps the current one. */
  renew: () => void
}

/** `create` returns a value and calls its argument when that value has failed. */
export function renewable<T>(create: (onFailure: () => void) => T): Renewable<T> {
  let hasFailed = false
  const createNext = () => {
    hasFailed = false
    return create(() => (hasFailed = true))
  }
  let value = createNext()
  return {
    current: () => value,
    renew: () => {
      if (hasFailed) value = createNext()
    },
  }
}
