import { describe, expect, it } from 'vitest'
import { parseJson, printJson } from './json'

describe('JSON round-trips', () => {
  it.each([
    '9007199254740993',
    '-9223372036854775808',
    '{"seed":9007199254740993,"ratio":0.30000000000000004,"text":"9007199254740993"}',
    '{"a":["\\"9007199254740993\\"",18446744073709551615,1,"0755"],"9007199254740993":true}',
    '{"ratio":1234567890.1234567,"small":1e-21}',
    '"bigint-1-2-3-4:5"',
    'null',
  ])('%s', (text) => {
    expect(printJson(parseJson(text))).toBe(text)
  })

  it('an exact number stays a number', () => {
    expect(parseJson('[9007199254740991,9007199254740993]')).toEqual([9007199254740991, 9007199254740993n])
  })

  it('with indentation', () => {
    expect(printJson({ seed: 9007199254740993n }, 2)).toBe('{\n  "seed": 9007199254740993\n}')
  })

  it.each([
    '{"a":9007199254740993',
    '[09007199254740993]',
    '[-09007199254740993]',
    '[00000000000000000]',
    '[9007199254740993.]',
    '[+9007199254740993]',
    '{9007199254740993:1}',
    '{-9007199254740993 : 1}',
    '{"a":1,9007199254740993\n:1}',
  ])('%s is refused', (text) => {
    expect(() => parseJson(text)).toThrow(SyntaxError)
  })
})
