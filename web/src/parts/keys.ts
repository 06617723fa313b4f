// Shortcut keys of the whole page.
import { useEffect, useRef } from 'react'

/** True in text fields; an editor has its own shadow tree. */
export function isTyping(on: EventTarget | null): boolean {
  const target = (on instanceof Element && on.shadowRoot?.activeElement) || on
  return target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName))
}

/** Calls back for keys pressed outside of text fields; an open dialog receives all keys. */
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
