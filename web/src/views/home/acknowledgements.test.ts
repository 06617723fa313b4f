import { expect, it } from 'vitest'
import type { ProblemName } from '../../api/problems'
import { acknowledge, acknowledgedLast, validAcknowledgements } from './acknowledgements'

/** A problem with counts by cluster; `unlisted` objects are in clusters that the response does not list. */
const problem = (name: ProblemName, clusters: Record<string, number>, unlisted = 0) => ({
  name,
  result: {
    total: Object.values(clusters).reduce((all, count) => all + count, unlisted),
    facets: { cluster: Object.entries(clusters).map(([value, count]) => ({ value, count })) },
  },
})
const AT = Date.parse('2026-01-01T00:00:00Z')
const READ_AT = AT + 10_000

it('an acknowledgement has the time and the counts of the problem', () => {
  expect(acknowledge(problem('pods', { east: 2 }, 3), AT)).toEqual({ at: '2026-01-01T00:00:00.000Z', countedAt: '2026-01-01T00:00:00.000Z', total: 5, clusters: { east: 2 } })
})

it.each([
  ['as it was', problem('pods', { east: 2, west: 1 }), true],
  ['with fewer objects', problem('pods', { east: 1, west: 1 }), true],
  ['in fewer clusters', problem('pods', { east: 2 }), true],
  ['with more objects', problem('pods', { east: 3, west: 1 }), false],
  ['with more objects in one cluster and fewer in another', problem('pods', { east: 1, west: 2 }), false],
  ['in another cluster', problem('pods', { east: 1, north: 1 }), false],
  ['resolved', undefined, false],
])('a problem %s is acknowledged: %s', (_, now, expected) => {
  const before = { pods: acknowledge(problem('pods', { east: 2, west: 1 }), AT) }
  expect('pods' in validAcknowledgements(before, now ? [now] : [], READ_AT)).toBe(expected)
})

it('a cluster that was not listed does not count as a change while the total is not larger', () => {
  const before = { pods: acknowledge(problem('pods', { east: 5 }, 9), AT) }
  expect('pods' in validAcknowledgements(before, [problem('pods', { east: 4, north: 4 }, 1)], READ_AT)).toBe(true)
  expect('pods' in validAcknowledgements(before, [problem('pods', { east: 5, north: 4 }, 6)], READ_AT)).toBe(false)
})

it('a problem that returns after it affected fewer objects needs attention', () => {
  const before = { pods: acknowledge(problem('pods', { east: 5 }), AT) }
  const lower = validAcknowledgements(before, [problem('pods', { east: 2 })], READ_AT)
  expect(lower).toEqual({ pods: { ...before.pods, countedAt: '2026-01-01T00:00:10.000Z', total: 2, clusters: { east: 2 } } })
  expect(validAcknowledgements(lower, [problem('pods', { east: 4 })], READ_AT + 1)).toEqual({})
  // Another tab still has the numbers from before.
  expect(validAcknowledgements(lower, [problem('pods', { east: 5 })], READ_AT - 1)).toBe(lower)
})

it('acknowledgements that do not change keep their identity', () => {
  const before = { pods: acknowledge(problem('pods', { east: 2 }), AT), nodes: acknowledge(problem('nodes', { west: 1 }), AT) }
  expect(validAcknowledgements(before, [problem('nodes', { west: 1 }), problem('pods', { east: 2 })], READ_AT)).toBe(before)
  expect(validAcknowledgements(before, [problem('nodes', { west: 1 })], READ_AT)).toEqual({ nodes: before.nodes })
})

it('problems that were read before the acknowledgement do not end it', () => {
  const before = { pods: acknowledge(problem('pods', { east: 2 }), AT) }
  expect(validAcknowledgements(before, [problem('pods', { east: 9 })], AT)).toBe(before)
})

it('acknowledged problems are at the end, and both parts keep their order', () => {
  const problems = [problem('nodes', {}, 1), problem('pods', {}, 1), problem('quota', {}, 1), problem('warnings', {}, 1)]
  const acknowledgements = { nodes: acknowledge(problems[0]!, AT), quota: acknowledge(problems[2]!, AT) }
  expect(acknowledgedLast(problems, acknowledgements).map(({ name }) => name)).toEqual(['pods', 'warnings', 'nodes', 'quota'])
})
