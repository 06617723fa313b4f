// Shortcut keys of the whole page.
import { useEffect, useRef } from 'react'

/** True if an event's target is a text field, also inside the editor's shadow tree. */
export function isTyping(on: EventTarget | null): boolean {
  const target = (on instanceof Element && on.shadowRoot?.activeElement) || on
  return target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName))
}

/** Calls `on` for each key press in the page, unless a dialog is open. */
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
