// The dialog above the page: the palette or the list of keys. Pure.

export type Overlay = { dialog: 'keys' } | { dialog: 'palette'; begin: string }

/** A pressed key, of a KeyboardEvent. */
interface Pressed {
  key: string
  ctrlKey: boolean
  metaKey: boolean
  altKey: boolean
}

/** The dialog that a key opens; `typing`: the focus is in a text field. */
export function overlayFor({ key, ctrlKey, metaKey, altKey }: Pressed, typing: boolean): Overlay | undefined {
  if (key === 'k' && (metaKey || ctrlKey)) return { dialog: 'palette', begin: '' }
  if (typing || ctrlKey || metaKey || altKey) return undefined
  if (key === ':') return { dialog: 'palette', begin: ':' }
  return key === '?' ? { dialog: 'keys' } : undefined
}

/** Text that was typed before the palette was loaded: the palette begins with it. */
export function typedAhead(open: Overlay | undefined, begin: string): Overlay | undefined {
  return open?.dialog === 'palette' ? { ...open, begin } : open
}
