import { expect, it } from 'vitest'
import { keyOf, type Pages } from '../api/pages'
import type { Hit } from '../api/types'
import { nextRestoreStep, MAX_RESTORED_ROWS, positionFromState, withPosition } from './listPosition'

const hit = (name: string): Hit => ({ cluster: 'm1', apiVersion: 'v1', kind: 'Pod', resource: 'pods', name, matched: [] })
const pages = (names: string[], next?: string): Pages => ({ fresh: [], next, pages: [{ cursor: undefined, hits: names.map(hit), count: names.length }] })
const key = keyOf(hit('c'))

it('a position is stored in the history entry along with other state', () => {
  const position = { row: 2, key, top: 60 }
  expect(positionFromState(withPosition({ other: 1 }, position))).toEqual(position)
  expect(withPosition({ other: 1 }, position)).toMatchObject({ other: 1 })
  expect(positionFromState(withPosition(null, position))).toEqual(position)
  for (const state of [null, undefined, 'x', {}, { place: { row: 'x' } }]) expect(positionFromState(state)).toBeUndefined()
})

it('the row is selected again, also after it has moved', () => {
  expect(nextRestoreStep({ row: 2, key, top: 60 }, pages(['a', 'b', 'c']), 30, true)).toEqual({ row: 2, top: 60 })
  expect(nextRestoreStep({ row: 2, key, top: 60 }, pages(['c', 'a', 'b']), 30, true)).toEqual({ row: 0, top: 60 })
  // Another hit is not selected in its place.
  expect(nextRestoreStep({ row: 2, key, top: 60 }, pages(['a', 'b', 'd']), 30, true)).toEqual({ row: -1, top: 60 })
})

it('further rows are loaded until the position is reached', () => {
  expect(nextRestoreStep({ row: 2, key, top: 0 }, pages([]), 30, false)).toBeUndefined()
  expect(nextRestoreStep({ row: 2, key, top: 0 }, pages(['a'], 'next'), 30, false)).toEqual({ load: 2 })
  expect(nextRestoreStep({ row: -1, top: 90 }, pages(['a'], 'next'), 30, false)).toEqual({ load: 3 })
  expect(nextRestoreStep({ row: 2, key, top: 60 }, pages(['a']), 30, true)).toEqual({ row: -1, top: 60 })
  expect(nextRestoreStep({ row: MAX_RESTORED_ROWS, key, top: 0 }, pages(['a'], 'next'), 30, false)).toEqual({ row: -1, top: 0 })
})
