import { expect, it } from 'vitest'
import { overlayFor, withTypedText } from './overlay'

const keyPress = (key: string, modifiers: object = {}) => ({ key, ctrlKey: false, metaKey: false, altKey: false, ...modifiers })

it('Ctrl-K and ⌘K open the palette also from the search box', () => {
  for (const modifiers of [{ ctrlKey: true }, { metaKey: true }]) expect(overlayFor(keyPress('k', modifiers), true)).toEqual({ dialog: 'palette', initialText: '' })
})

it('single keys open dialogs outside of text fields only', () => {
  expect(overlayFor(keyPress(':'), false)).toEqual({ dialog: 'palette', initialText: ':' })
  expect(overlayFor(keyPress('?'), false)).toEqual({ dialog: 'keys' })
  for (const key of [':', '?', 'k']) expect(overlayFor(keyPress(key), true)).toBeUndefined()
  expect(overlayFor(keyPress('?', { altKey: true }), false)).toBeUndefined()
})

it('text that is typed while the palette is loading becomes its initial text', () => {
  const open = overlayFor(keyPress('k', { ctrlKey: true }), true)
  expect(withTypedText(open, 'quo')).toEqual({ dialog: 'palette', initialText: 'quo' })
  expect(withTypedText(undefined, 'quo')).toBeUndefined()
})
