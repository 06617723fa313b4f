import { expect, it } from 'vitest'
import { GENERIC, iconOfKind, KIND_ICONS, OTHER_ICONS } from './kinds'
import sprite from './sprite.svg?raw'

const drawn = new Set([...sprite.matchAll(/<symbol id="(\w+)"/g)].map(([, id]) => id))

it('every icon is in the sprite', () => {
  expect([...KIND_ICONS, ...OTHER_ICONS].filter((icon) => !drawn.has(icon))).toEqual([])
  expect(drawn.size).toBe(KIND_ICONS.length + OTHER_ICONS.length)
})

it.each([
  ['Pod', 'pod'],
  ['ClusterPropagationPolicy', 'policy'],
  ['Certificate', GENERIC],
])('%s has the icon %s', (kind, icon) => expect(iconOfKind(kind)).toBe(icon))
