import { expect, test } from 'vitest'
import { splitSpan, bucketQuery } from './buckets'

test('boundaries are stable over time', () => {
  const at = Date.parse('2026-01-01T12:00:45Z') / 1000
  const [first] = splitSpan('1h', at)
  const all = splitSpan('1h', at)
  expect(all).toHaveLength(30)
  expect(all.map(({ from }) => from)).toEqual(splitSpan('1h', at + 60).map(({ from }) => from))
  expect(all.slice(1).every(({ from }, nth) => from === all[nth]!.to)).toBe(true)
  expect(bucketQuery(first!)).toBe('last:2026-01-01T11:02:00Z..2026-01-01T11:03:59Z')
  expect(all.filter(({ isComplete }) => !isComplete).length).toBeLessThanOrEqual(2)
})
