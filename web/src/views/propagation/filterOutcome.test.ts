import { expect, test } from 'vitest'
import { filterOutcomeOf } from './filterOutcome'

test.each([
  [{}, { tone: 'good' }],
  [{ rejected: { filter: 'TaintToleration', reason: 'a taint' } }, { filter: 'TaintToleration', reason: 'a taint', tone: 'bad' }],
  [{ evictedBy: 'down:NoExecute' }, { reason: 'down:NoExecute', tone: 'warn' }],
  [{ rejected: { filter: 'APIEnablement', reason: 'no API' }, evictedBy: 'down:NoExecute' }, { filter: 'APIEnablement', reason: 'no API', tone: 'bad' }],
] as const)('the filter outcome of %j is %j', (report, expected) => expect(filterOutcomeOf(report)).toEqual(expected))
