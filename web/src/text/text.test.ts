import { expect, test } from 'vitest'
import { selectLocale } from '.'
import { withRecentQuery } from '../prefs'

test.each([
  [undefined, ['zh-Hans-CN', 'en'], 'zh-CN'],
  [undefined, ['de-CH', 'en-GB', 'zh'], 'en'],
  [undefined, ['fr'], 'en'],
  ['zh-CN', ['en'], 'zh-CN'],
  ['en', ['zh'], 'en'],
] as const)('with the choice %s and the browser languages %j, the language is %s', (chosen, preferred, locale) => {
  expect(selectLocale(chosen, preferred)).toBe(locale)
})

test('recent queries are newest first, unique and limited', () => {
  expect(withRecentQuery(['a', 'b'], ' b ')).toEqual(['b', 'a'])
  expect(withRecentQuery(['a'], '  ')).toEqual(['a'])
  expect(withRecentQuery(Array.from({ length: 50 }, (_, n) => `q${n}`), 'new')).toHaveLength(50)
})
