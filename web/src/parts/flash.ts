// A value that is shown for a short time, such as the confirmation of a copy.
import { useEffect, useMemo, useState } from 'react'

/** Time until a confirmation disappears. */
export const FLASH_MS = 2_000

export interface Flash<T> {
  /** Shows a value and, some time later, removes it; a new value starts the time again. */
  show: (value: T) => void
  /** Removes the value at once. */
  clear: () => void
}

export function createFlash<T>(set: (value: T | undefined) => void, durationMs = FLASH_MS): Flash<T> {
  let timer: ReturnType<typeof setTimeout> | undefined
  const setAndStop = (value: T | undefined) => {
    clearTimeout(timer)
    set(value)
  }
  return {
    show: (value) => {
      setAndStop(value)
      timer = setTimeout(() => set(undefined), durationMs)
    },
    clear: () => setAndStop(undefined),
  }
}

/** The text that was copied last, for a short time, and a function that copies a text. */
export function useCopied(): [string | undefined, (text: string) => Promise<void>] {
  const [copied, setCopied] = useState<string>()
  const confirmation = useMemo(() => createFlash<string>(setCopied), [])
  useEffect(() => () => confirmation.clear(), [confirmation])
  const copy = (text: string) => navigator.clipboard.writeText(text).then(() => confirmation.show(text), () => confirmation.clear())
  return [copied, copy]
}
