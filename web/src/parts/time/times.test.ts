import { describe, expect, it } from 'vitest'
import { pastRangeOf, queryForTypedRange, typedRangeOf, queryAtTime, BAR_COUNT, splitRange, queryForRange, timeFieldOf, queryForSpan, momentOf, histogramRange, parseTimeSeconds, joinBuckets, spanOf, queryForBucket } from './times'

const NOW = Date.parse('2026-08-01T12:00:00Z') / 1000
const at = (time: string) => Date.parse(`2026-08-01T${time}Z`) / 1000

it.each([
  ['kind:pod', 'changed'],
  ['kind:event type:Warning', 'last'],
  ['kind:ev', 'last'],
  ['kind:event.events.k8s.io', 'last'],
  ['kind:Events.v1.events.k8s.io', 'last'],
  ['kind:event,events.events.k8s.io', 'last'],
  ['kind:events.v1', 'last'],
  ['kind:event.events.k8s.io,pod', 'changed'],
  ['kind:events.example.io', 'changed'],
  ['web', 'changed'],
])('%s is counted by %s', (q, field) => expect(timeFieldOf(q)).toBe(field))

it.each([
  ['now-2h', at('10:00:00')],
  ['now-15m', at('11:45:00')],
  ['now-1h30m', at('10:30:00')],
  ['2h', at('10:00:00')],
  ['day', at('12:00:00') - 86_400],
  ['2h ago', undefined],
  ['10:05', at('10:05:00')],
  ['13:00', at('13:00:00') - 86_400],
  ['2026-08-01T09:00:00Z', at('09:00:00')],
  ['2026-08-01T09:00', at('09:00:00')],
  ['2026-08-01 09:00', at('09:00:00')],
  ['2026-08-01T09:00:00.5+01:00', at('08:00:00') + 0.5],
  ['2026-08-01', at('00:00:00')],
  ['', NOW],
  ['tea', undefined],
  ['10', undefined],
  ['25:00', undefined],
  ['2026-08-01T25:00', undefined],
  ['now-99999999999w', undefined],
])('%s is %s', (time, seconds) => expect(parseTimeSeconds(time, NOW)).toBe(seconds))

it.each([
  ['kind:pod', undefined],
  ['kind:pod at:now-2h', at('10:00:00')],
  ['kind:pod during:now-3h..now-1h', at('11:00:00')],
  ['kind:event during:10:04..10:06', at('10:06:00')],
])('%s refers to the Unix time %s', (q, moment) => expect(momentOf(q, NOW)).toBe(moment))

describe('the range of a histogram', () => {
  it('is the last day, or the range of the query', () => {
    expect(histogramRange('kind:pod', NOW)).toEqual({ from: NOW + 2_880 - 86_400, to: NOW + 2_880 })
    expect(histogramRange('kind:pod changed:<1h', NOW)).toEqual({ from: NOW + 120 - 3_600, to: NOW + 120 })
    expect(histogramRange('kind:event during:2026-08-01T10:00:00Z..2026-08-01T10:59:59Z', NOW)).toEqual({ from: at('10:00:00'), to: at('11:00:00') })
  })

  it('is divided into bars without gaps', () => {
    const buckets = splitRange({ from: 0, to: 300 })
    expect(buckets).toHaveLength(BAR_COUNT)
    expect(buckets[1]).toEqual({ from: 10, to: 20 })
    expect(joinBuckets(buckets, 3, 1)).toEqual({ from: 10, to: 40 })
  })
})

it('a new time replaces the previous one', () => {
  expect(queryForSpan('kind:pod at:now-2h', '1h')).toBe('kind:pod changed:<1h')
  expect(queryForSpan('kind:event last:<6h', undefined)).toBe('kind:event')
  expect(queryForSpan('kind:pod OR kind:node', '1h')).toBe('(kind:pod OR kind:node) changed:<1h')
  expect(queryAtTime('kind:pod changed:<1h', 'now-2h')).toBe('kind:pod at:now-2h')
  expect(queryAtTime('kind:pod at:now-2h', ' ')).toBe('kind:pod')
  expect(spanOf('kind:event last:<15m')).toBe('15m')
})

it.each([
  ['kind:pod', '2026-08-01T10:00', '2026-08-01T10:09:59', 'kind:pod changed:2026-08-01T10:00:00Z..2026-08-01T10:09:59Z'],
  ['kind:event last:<6h', 'now-2h', '', 'kind:event during:2026-08-01T10:00:00Z..2026-08-01T12:00:00Z'],
  ['kind:event.events.k8s.io', 'now-2h', '', 'kind:event.events.k8s.io during:2026-08-01T10:00:00Z..2026-08-01T12:00:00Z'],
  ['kind:pod during:now-3h..now-1h', '10:00', '11:00', 'kind:pod during:2026-08-01T10:00:00Z..2026-08-01T11:00:00Z'],
  ['kind:pod', '', '10:00', undefined],
  ['kind:pod', '10:00', '09:00', undefined],
  ['kind:pod', 'tea', '', undefined],
  ['kind:pod', '10:61', '', undefined],
  ['kind:pod', 'now-99999999999w', '', undefined],
])('in %s, the range from %j to %j is %s', (q, begin, end, expected) => expect(queryForTypedRange(q, begin, end, NOW)).toBe(expected))

it.each([
  ['kind:pod changed:10:00..11:00', ['10:00', '11:00'], undefined],
  ['kind:event during:10:00..', ['10:00', ''], ['10:00', '']],
  ['kind:pod changed:<1h', undefined, undefined],
  ['kind:pod at:10:00', undefined, undefined],
])('the range of %s is %j, that of the past %j', (q, range, past) => {
  expect(typedRangeOf(q)).toEqual(range)
  expect(pastRangeOf(q)).toEqual(past)
})

it('objects of a range of the past are counted by the time at which they match', () => {
  expect(queryForBucket('status:Error during:10:00..11:00', { from: at('10:00:00'), to: at('10:02:00') })).toBe('status:Error during:2026-08-01T10:00:00Z..2026-08-01T10:01:59Z')
})

it('a selected range becomes a term of the query', () => {
  const range = { from: at('10:00:00'), to: at('10:10:00') }
  expect(queryForRange('kind:event last:<6h', range)).toBe('kind:event during:2026-08-01T10:00:00Z..2026-08-01T10:09:59Z')
  expect(queryForRange('kind:pod', range)).toBe('kind:pod changed:2026-08-01T10:00:00Z..2026-08-01T10:09:59Z')
  expect(queryForBucket('kind:event', range)).toBe('kind:event last:2026-08-01T10:00:00Z..2026-08-01T10:09:59Z')
  expect(queryForBucket('kind:event.events.k8s.io', range)).toBe('kind:event.events.k8s.io last:2026-08-01T10:00:00Z..2026-08-01T10:09:59Z')
})
