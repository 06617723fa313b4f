import { expect, test } from 'vitest'
import { mergeSkipped, quarterQueries, trendOf } from './problems'

test('Events are counted in each quarter of the last hour', () => {
  expect(quarterQueries('kind:event type:Warning last:<1h', Date.parse('2026-01-01T11:00:00Z') / 1000)).toEqual([
    'kind:event type:Warning last:2026-01-01T10:00:00Z..2026-01-01T10:14:59Z',
    'kind:event type:Warning last:2026-01-01T10:15:00Z..2026-01-01T10:29:59Z',
    'kind:event type:Warning last:2026-01-01T10:30:00Z..2026-01-01T10:44:59Z',
    'kind:event type:Warning last:2026-01-01T10:45:00Z..2026-01-01T10:59:59Z',
  ])
})

test('skipped clusters of several results are listed once', () => {
  const outdated = { cluster: 'b', reason: 'no connection', ageSeconds: 90 }
  const missing = { cluster: 'b', reason: 'no connection', missing: true }
  const other = { cluster: 'a', reason: 'not ready', missing: true }
  expect(mergeSkipped([[outdated], [], [missing, other], [outdated]])).toEqual([other, missing])
})

test.each([
  ['nodes', [1, 2, 3, 4, 9]],
  // The last quarter contains the current Events.
  ['warnings', [1, 2, 3, 4]],
] as const)('the trend of %s ends with the current number', (name, expected) => expect(trendOf(name, [1, 2, 3, 4], 9)).toEqual(expected))
