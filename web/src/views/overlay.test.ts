import { expect, it } from 'vitest'
import { overlayFor, withTypedText } from './overlay'

const pressed = (key: string, held: object = {}) => ({ key, ctrlKey: false, metaKey: false, altKey: false, ...held })

it('Ctrl-K and ⌘K open the palette also from the search box', () => {
  for (const held of [{ ctrlKey: true }, { metaKey: true }]) expect(overlayFor(pressed('k', held), true)).toEqual({ dialog: 'palette', initialText: '' })
})

it('single keys open dialogs outside of text fields only', () => {
  expect(overlayFor(pressed(':'), false)).toEqual({ dialog: 'palette', initialText: ':' })
  expect(overlayFor(pressed('?'), false)).toEqual({ dialog: 'keys' })
  for (const key of [':', '?', 'k']) expect(overlayFor(pressed(key), true)).toBeUndefined()
  expect(overlayFor(pressed('?', { altKey: true }), false)).toBeUndefined()
})

it('keys typed while the palette is loading are its text', () => {
  const open = overlayFor(pressed('k', { ctrlKey: true }), true)
  expect(withTypedText(open, 'quo')).toEqual({ dialog: 'palette', initialText: 'quo' })
  expect(withTypedText(undefined, 'quo')).toBeUndefined()
})
