import { expect, test } from 'vitest'
import { fitOf } from './fit'

test.each([
  [{}, { tone: 'good' }],
  [{ rejected: { filter: 'TaintToleration', reason: 'a taint' } }, { state: 'TaintToleration', why: 'a taint', tone: 'bad' }],
  [{ evictedBy: 'down:NoExecute' }, { why: 'down:NoExecute', tone: 'warn' }],
  [{ rejected: { filter: 'APIEnablement', reason: 'no API' }, evictedBy: 'down:NoExecute' }, { state: 'APIEnablement', why: 'no API', tone: 'bad' }],
] as const)('a cluster with %j fits as %j', (report, expected) => expect(fitOf(report)).toEqual(expected))
