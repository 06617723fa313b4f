// The dialog above the page: the command palette or the list of shortcut keys. Has no side effects.

export type Overlay = { dialog: 'keys' } | { dialog: 'palette'; initialText: string }

/** Fields of a KeyboardEvent. */
interface KeyPress {
  key: string
  ctrlKey: boolean
  metaKey: boolean
  altKey: boolean
}

/** The dialog that a key opens; `typing` is true while the focus is in a text field. */
export function overlayFor({ key, ctrlKey, metaKey, altKey }: KeyPress, isTyping: boolean): Overlay | undefined {
  if (key === 'k' && (metaKey || ctrlKey)) return { dialog: 'palette', initialText: '' }
  if (isTyping || ctrlKey || metaKey || altKey) return undefined
  if (key === ':') return { dialog: 'palette', initialText: ':' }
  return key === '?' ? { dialog: 'keys' } : undefined
}

/** Sets the palette's initial text to what the user typed while the palette was loading. */
export function withTypedText(open: Overlay | undefined, initialText: string): Overlay | undefined {
  return open?.dialog === 'palette' ? { ...open, initialText } : open
}
