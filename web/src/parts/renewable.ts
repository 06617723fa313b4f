// Values that are created again after a failure. Has no side effects.

export interface Renewable<T> {
  current: () => T
  /** Replaces the value if it has failed. A value that is in use stays. */
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
