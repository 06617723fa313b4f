// Shortcut keys of the page.
import { useEffect, useLayoutEffect, useRef } from 'react'
import { currentPrefs } from '../prefs'

/** Shortcut keys that the user can change, by their defaults. */
export const CHANGEABLE_KEYS = ['/', '?', ':', 'j', 'k', 'g', 'G', 'x', 'l', 'y', 'e', 's', 'L', 'p'] as const
export type ChangeableKey = (typeof CHANGEABLE_KEYS)[number]

/** The default key of the action that a pressed key has; undefined if its default action has another key. `chosen` has the user's keys by default key. */
export function defaultKeyOf(pressed: string, chosen: Record<string, string>): string | undefined {
  const chosenFor = Object.keys(chosen).find((key) => chosen[key] === pressed)
  if (chosenFor !== undefined) return chosenFor
  return chosen[pressed] === undefined ? pressed : undefined
}

/** The event with another key. */
function withKey(event: KeyboardEvent, key: string): KeyboardEvent {
  const get = (target: KeyboardEvent, name: string | symbol): unknown => {
    if (name === 'key') return key
    const value: unknown = Reflect.get(target, name, target)
    return typeof value === 'function' ? (value as () => unknown).bind(target) : value
  }
  return new Proxy(event, { get })
}

/** True if an event's target is a text field, also inside the editor's shadow tree. */
export function isTyping(eventTarget: EventTarget | null): boolean {
  const target = (eventTarget instanceof Element && eventTarget.shadowRoot?.activeElement) || eventTarget
  return target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName))
}

/** Calls `onKey` for each key press in the page, unless a dialog is open. The user's keys arrive as the default keys of their actions. */
export function useKeys(onKey: (event: KeyboardEvent) => void): void {
  const latest = useRef(onKey)
  // A layout effect runs before the next event, so that a key pressed shortly after another one does not act on the earlier state.
  useLayoutEffect(() => {
    latest.current = onKey
  })
  useEffect(() => {
    const handleKeyDown = (event: KeyboardEvent) => {
      if (document.querySelector('dialog[open]')) return
      const hasModifier = event.ctrlKey || event.metaKey || event.altKey
      const key = hasModifier || isTyping(event.target) ? event.key : defaultKeyOf(event.key, currentPrefs().keys)
      if (key !== undefined) latest.current(key === event.key ? event : withKey(event, key))
    }
    window.addEventListener('keydown', handleKeyDown)
    return () => window.removeEventListener('keydown', handleKeyDown)
  }, [])
}
