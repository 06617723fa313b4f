import { expect, it } from 'vitest'
import { keyOf, type Pages } from '../api/pages'
import type { Hit } from '../api/types'
import { comeBack, DEEPEST, placeIn, withPlace } from './place'

const hit = (name: string): Hit => ({ cluster: 'm1', apiVersion: 'v1', kind: 'Pod', resource: 'pods', name, matched: [] })
const pages = (names: string[], next?: string): Pages => ({ fresh: [], next, pages: [{ cursor: undefined, hits: names.map(hit), count: names.length }] })
const key = keyOf(hit('c'))

it('a place is kept in the state of the history entry, beside other state', () => {
  const place = { row: 2, key, top: 60 }
  expect(placeIn(withPlace({ other: 1 }, place))).toEqual(place)
  expect(withPlace({ other: 1 }, place)).toMatchObject({ other: 1 })
  expect(placeIn(withPlace(null, place))).toEqual(place)
  for (const state of [null, undefined, 'x', {}, { place: { row: 'x' } }]) expect(placeIn(state)).toBeUndefined()
})

it('the row is selected again, also after it has moved', () => {
  expect(comeBack({ row: 2, key, top: 60 }, pages(['a', 'b', 'c']), 30, true)).toEqual({ row: 2, top: 60 })
  expect(comeBack({ row: 2, key, top: 60 }, pages(['c', 'a', 'b']), 30, true)).toEqual({ row: 0, top: 60 })
  // Another hit is not selected in its place.
  expect(comeBack({ row: 2, key, top: 60 }, pages(['a', 'b', 'd']), 30, true)).toEqual({ row: -1, top: 60 })
})

it('further rows are loaded until the place is reached', () => {
  expect(comeBack({ row: 2, key, top: 0 }, pages([]), 30, false)).toBeUndefined()
  expect(comeBack({ row: 2, key, top: 0 }, pages(['a'], 'next'), 30, false)).toEqual({ load: 2 })
  expect(comeBack({ row: -1, top: 90 }, pages(['a'], 'next'), 30, false)).toEqual({ load: 3 })
  expect(comeBack({ row: 2, key, top: 60 }, pages(['a']), 30, true)).toEqual({ row: -1, top: 60 })
  expect(comeBack({ row: DEEPEST, key, top: 0 }, pages(['a'], 'next'), 30, false)).toEqual({ row: -1, top: 0 })
})
