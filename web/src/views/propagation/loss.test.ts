import { expect, test } from 'vitest'
import type { Change, ClusterPlan, PlanReport, TemplatePlan } from '../../api/propagation'
import { countLoss } from './loss'

const cluster = (name: string, change: Change): ClusterPlan => ({ name, change, overrides: [], differences: [] })
const template = (clusters: ClusterPlan[], more: Partial<TemplatePlan> = {}): TemplatePlan => ({
  template: { apiVersion: 'apps/v1', kind: 'Deployment', namespace: 'shop', name: 'web' },
  change: 'Changed',
  policies: [],
  clusters,
  dependencies: [],
  waiting: [],
  ...more,
})
const report = (templates: TemplatePlan[]): PlanReport => ({ objects: [], templates, more: 0, withheld: 0, notices: [] })
const gone = cluster('m1', 'Removed')

test.each([
  ['moved to another cluster', template([cluster('m2', 'Added'), gone], { scheduling: { decision: 'Schedule', terms: [] } }), { leaving: 1, unplaced: 0, staying: 0, isLowerBound: false }],
  ['placed with its parent', template([gone]), { leaving: 1, unplaced: 0, staying: 0, isLowerBound: false }],
  ['without room elsewhere', template([gone], { scheduling: { decision: 'Fail', terms: [] } }), { leaving: 0, unplaced: 1, staying: 0, isLowerBound: false }],
  ['without any fitting cluster', template([gone], { scheduling: { decision: 'Clear', terms: [] } }), { leaving: 0, unplaced: 1, staying: 0, isLowerBound: false }],
  ['that cannot be planned', template([gone], { message: 'the interpreter failed' }), { leaving: 0, unplaced: 1, staying: 0, isLowerBound: false }],
  ['whose policy tolerates the taints', template([cluster('m1', 'Unchanged')], { scheduling: { decision: 'Keep', terms: [] } }), { leaving: 0, unplaced: 0, staying: 1, isLowerBound: false }],
  ['with other replicas there', template([cluster('m1', 'Changed')]), { leaving: 0, unplaced: 0, staying: 1, isLowerBound: false }],
  ['in other clusters only', template([cluster('m2', 'Removed'), cluster('m1', 'Added')]), { leaving: 0, unplaced: 0, staying: 0, isLowerBound: false }],
])('a template %s', (_name, plan, expected) => expect(countLoss(report([plan]), 'm1')).toEqual(expected))

test('templates are summed', () => {
  const unplaced = template([gone], { scheduling: { decision: 'Fail', terms: [] } })
  expect(countLoss(report([template([gone]), unplaced, unplaced]), 'm1')).toEqual({ leaving: 1, unplaced: 2, staying: 0, isLowerBound: false })
})

test.each([
  ['planned', { more: 0, withheld: 0 }, false],
  ['beyond the limit', { more: 3, withheld: 0 }, true],
  ['that the user may not read', { more: 0, withheld: 1 }, true],
])('counts are lower bounds if there are templates %s: %o', (_, left, expected) => expect(countLoss({ ...report([template([gone])]), ...left }, 'm1').isLowerBound).toBe(expected))
