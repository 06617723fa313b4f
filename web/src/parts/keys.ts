// Keys that work on a whole page.
import { useEffect, useRef } from 'react'

/** True where letters are text; an editor keeps them in a tree of its own. */
export function isTyping(on: EventTarget | null): boolean {
  const target = (on instanceof Element && on.shadowRoot?.activeElement) || on
  return target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName))
}

/** Calls back for keys that no text field takes; a dialog that is open keeps them all. */
export function useKeys(on: (event: KeyboardEvent) => void): void {
  const latest = useRef(on)
  useEffect(() => {
    latest.current = on
  })
  useEffect(() => {
    const pressed = (event: KeyboardEvent) => {
      if (!document.querySelector('dialog[open]')) latest.current(event)
    }
    window.addEventListener('keydown', pressed)
    return () => window.removeEventListener('keydown', pressed)
  }, [])
}
