import { describe, expect, it } from 'vitest'
import { age } from './format'

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
