import { expect, test } from 'vitest'
import { pick } from '.'
import { withAsked } from '../prefs'

test.each([
  [undefined, ['zh-Hans-CN', 'en'], 'zh-CN'],
  [undefined, ['de-CH', 'en-GB', 'zh'], 'en'],
  [undefined, ['fr'], 'en'],
  ['zh-CN', ['en'], 'zh-CN'],
  ['en', ['zh'], 'en'],
] as const)('%s of %j is %s', (chosen, wanted, locale) => {
  expect(pick(chosen, wanted)).toBe(locale)
})

test('recent queries are newest first, unique and limited', () => {
  expect(withAsked(['a', 'b'], ' b ')).toEqual(['b', 'a'])
  expect(withAsked(['a'], '  ')).toEqual(['a'])
  expect(withAsked(Array.from({ length: 50 }, (_, n) => `q${n}`), 'new')).toHaveLength(50)
})
