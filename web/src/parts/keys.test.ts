import { expect, it } from 'vitest'
import { defaultKeyOf } from './keys'

it.each([
  ['j', {}, 'j'],
  ['n', { j: 'n' }, 'j'],
  // The default key no longer has its action, unless it is chosen for another one.
  ['j', { j: 'n' }, undefined],
  ['j', { j: 'k', k: 'j' }, 'k'],
  ['Enter', { j: 'n' }, 'Enter'],
])('%s with %o is %s', (pressed, chosen, expected) => expect(defaultKeyOf(pressed, chosen)).toBe(expected))
