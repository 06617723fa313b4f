import { describe, expect, it } from 'vitest'
import { formatAge, stableColour, stableIndex, splitByMarks } from './format'

describe('formatAge', () => {
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
  it.each(cases)('%d s', (seconds, expected) => expect(formatAge(seconds)).toBe(expected))
})

describe('stableColour', () => {
  const fleets = [
    ['member1', 'member2', 'member3'],
    ['prod', 'staging', 'dev'],
    ['eu-west-1', 'eu-west-2', 'us-east-1'],
  ]
  it.each(fleets)('differs between %s, %s and %s', (...names) => {
    expect(new Set(names.map(stableColour)).size).toBe(names.length)
    expect(new Set(names.map((name) => `${stableColour(name)} ${stableIndex(name, 8)}`)).size).toBe(names.length)
  })
})

describe('splitByMarks', () => {
  it('splits highlighted text', () => {
    expect(splitByMarks('nginx:1.25', [[0, 5]])).toEqual([
      { text: 'nginx', hit: true },
      { text: ':1.25', hit: false },
    ])
    expect(splitByMarks('容器a', [[3, 6]]).map(({ text }) => text)).toEqual(['容', '器', 'a'])
    expect(splitByMarks('a')).toEqual([{ text: 'a', hit: false }])
  })
})
