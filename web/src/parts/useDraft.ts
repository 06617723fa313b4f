import { useState } from 'react'

/** Text of an input whose value is part of the address: it follows `value`, and can be edited until it is submitted. */
export function useDraft(value: string): [string, (draft: string) => void] {
  const [draft, setDraft] = useState(value)
  const [previousValue, setPreviousValue] = useState(value)
  if (previousValue !== value) {
    setPreviousValue(value)
    setDraft(value)
  }
  return [draft, setDraft]
}
