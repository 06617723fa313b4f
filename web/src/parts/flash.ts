// A value that is shown for a short time, such as the confirmation of a copy.
import { useEffect, useMemo, useState } from 'react'

/** Milliseconds until a confirmation disappears. */
export const SHOWN_FOR = 2_000

export interface Flash<T> {
  /** Shows a value and, some time later, removes it; a new value starts the time again. */
  show: (value: T) => void
  /** Removes the value at once. */
  clear: () => void
}

export function flash<T>(set: (value: T | undefined) => void, time = SHOWN_FOR): Flash<T> {
  let timer: ReturnType<typeof setTimeout> | undefined
  const put = (value: T | undefined) => {
    clearTimeout(timer)
    set(value)
  }
  return {
    show: (value) => {
      put(value)
      timer = setTimeout(() => set(undefined), time)
    },
    clear: () => put(undefined),
  }
}

/** The text that was copied last, for a short time, and a function that copies a text. */
export function useCopied(): [string | undefined, (text: string) => Promise<void>] {
  const [copied, setCopied] = useState<string>()
  const shown = useMemo(() => flash<string>(setCopied), [])
  useEffect(() => () => shown.clear(), [shown])
  const copy = (text: string) => navigator.clipboard.writeText(text).then(() => shown.show(text), () => shown.clear())
  return [copied, copy]
}
