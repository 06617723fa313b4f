import { expect, it } from 'vitest'
import type { ClusterReport, Explanation } from '../../api/propagation'
import { absentClusters } from './absentClusters'

const report = (name: string, filter?: string): ClusterReport => ({ name, score: 0, selected: false, ...(filter && { rejected: { filter, reason: `reason of ${filter}` } }) })
const explanation = (...terms: ClusterReport[][]): Pick<Explanation, 'scheduling' | 'targets'> => ({
  scheduling: { decision: 'Keep', terms: terms.map((clusters) => ({ clusters })) },
  targets: [{ cluster: 'east', placed: 'Scheduled', overrides: [], applied: true }],
})

it.each([
  ['without targets', explanation([report('east'), report('north', 'TaintToleration')]), [{ cluster: 'north', filter: 'TaintToleration', reason: 'reason of TaintToleration' }]],
  ['that fit but were not selected', explanation([report('west')]), [{ cluster: 'west' }]],
  ['that the policy does not name at the end', explanation([report('alpha', 'ClusterAffinity'), report('west', 'SpreadConstraint')]), [
    { cluster: 'west', filter: 'SpreadConstraint', reason: 'reason of SpreadConstraint' },
    { cluster: 'alpha', filter: 'ClusterAffinity', reason: 'reason of ClusterAffinity' },
  ]],
  ['by the last affinity term', explanation([report('west', 'ClusterAffinity')], [report('west', 'TaintToleration')]), [{ cluster: 'west', filter: 'TaintToleration', reason: 'reason of TaintToleration' }]],
  ['none without a scheduling result', { targets: [] }, []],
])('lists clusters %s', (_, given, expected) => expect(absentClusters(given)).toEqual(expected))
