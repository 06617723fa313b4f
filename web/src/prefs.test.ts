import { afterEach, describe, expect, it, test, vi } from 'vitest'
import { currentPrefs, favouritesFirst, recentQueriesOf, setWide, toggled } from './prefs'

afterEach(() => vi.unstubAllGlobals())

describe('recent queries', () => {
  test.each([
    ['without stars', {}, ['c', 'b', 'a']],
    ['a starred one', { amy: ['a'] }, ['a', 'c', 'b']],
    ['several stars, newest first', { amy: ['b', 'a'] }, ['b', 'a', 'c']],
    ['a star outlives the query', { amy: ['old'] }, ['old', 'c', 'b', 'a']],
    ['stars of another user', { bob: ['a'] }, ['c', 'b', 'a']],
  ] as [string, Record<string, string[]>, string[]][])('%s', (_name, starred, expected) => {
    expect(recentQueriesOf({ asked: { amy: ['c', 'b', 'a'] }, starred }, 'amy')).toEqual(expected)
  })

  it('stay if they have a star when the others are cleared', () => {
    expect(recentQueriesOf({ asked: {}, starred: { amy: ['a'] } }, 'amy')).toEqual(['a'])
  })
})

test('a star is set and removed', () => {
  expect(toggled(['a'], 'b')).toEqual(['b', 'a'])
  expect(toggled(['b', 'a'], 'b')).toEqual(['a'])
})

test('favourites are first, and both parts keep their order', () => {
  expect(favouritesFirst(['a', 'b', 'c', 'd'], ['d', 'b', 'deleted'], (name) => name)).toEqual(['b', 'd', 'a', 'c'])
})

test('a kind is wide once, until it is narrow again', () => {
  vi.stubGlobal('document', { documentElement: { dataset: {} } })
  const kindsAfter = (kind: string, isWide: boolean) => {
    setWide(kind, isWide)
    return currentPrefs().wideKinds
  }
  expect([kindsAfter('Pod', true), kindsAfter('widget', true), kindsAfter('Pod', true), kindsAfter('Pod', false), kindsAfter('Pod', false)]).toEqual([
    ['Pod'],
    ['Pod', 'widget'],
    ['widget', 'Pod'],
    ['widget'],
    ['widget'],
  ])
})
