import { expect, test } from 'vitest'
import { quarterQueries, trendOf } from './problems'

test('Events are counted in each quarter of the last hour', () => {
  expect(quarterQueries('kind:event type:Warning last:<1h', Date.parse('2026-01-01T11:00:00Z') / 1000)).toEqual([
    'kind:event type:Warning last:2026-01-01T10:00:00Z..2026-01-01T10:14:59Z',
    'kind:event type:Warning last:2026-01-01T10:15:00Z..2026-01-01T10:29:59Z',
    'kind:event type:Warning last:2026-01-01T10:30:00Z..2026-01-01T10:44:59Z',
    'kind:event type:Warning last:2026-01-01T10:45:00Z..2026-01-01T10:59:59Z',
  ])
})

test.each([
  ['nodes', [1, 2, 3, 4, 9]],
  // The last quarter contains the current Events.
  ['warnings', [1, 2, 3, 4]],
] as const)('the trend of %s ends with the current number', (name, expected) => expect(trendOf(name, [1, 2, 3, 4], 9)).toEqual(expected))
