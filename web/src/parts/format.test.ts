import { describe, expect, it } from 'vitest'
import { age, colour, icon, marked } from './format'

describe('age', () => {
  const cases: [number, string][] = [
    [0, '0s'],
    [119, '119s'],
    [120, '2m'],
    [135, '2m15s'],
    [599, '9m59s'],
    [3600, '60m'],
    [3 * 3600 + 60, '3h1m'],
    [9 * 3600, '9h'],
    [3 * 86400 + 3600, '3d1h'],
    [30 * 86400, '30d'],
  ]
  it.each(cases)('%d s', (seconds, expected) => expect(age(seconds)).toBe(expected))
})

describe('colour', () => {
  const fleets = [
    ['member1', 'member2', 'member3'],
    ['prod', 'staging', 'dev'],
    ['eu-west-1', 'eu-west-2', 'us-east-1'],
  ]
  it.each(fleets)('tells %s, %s and %s apart', (...names) => {
    expect(new Set(names.map(colour)).size).toBe(names.length)
    expect(new Set(names.map((name) => `${colour(name)} ${icon(name, 8)}`)).size).toBe(names.length)
  })
})

describe('marked', () => {
  it('splits highlighted text', () => {
    expect(marked('nginx:1.25', [[0, 5]])).toEqual([
      { text: 'nginx', hit: true },
      { text: ':1.25', hit: false },
    ])
    expect(marked('容器a', [[3, 6]]).map(({ text }) => text)).toEqual(['容', '器', 'a'])
    expect(marked('a')).toEqual([{ text: 'a', hit: false }])
  })
})
