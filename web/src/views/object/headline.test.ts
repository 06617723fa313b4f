import { expect, it } from 'vitest'
import type { KubeObject } from '../../api/types'
import { headlineOf } from './headline'

const object = (kind: string, more: Partial<KubeObject> = {}): KubeObject => ({ apiVersion: kind === 'Pod' ? 'v1' : 'apps/v1', kind, metadata: { name: 'web' }, ...more })
const UNAVAILABLE = { conditions: [{ type: 'Available', status: 'False', reason: 'MinimumReplicasUnavailable', message: 'no minimum availability' }] }

it('the state is the one of the index, then the phase, then the ready replicas', () => {
  expect(headlineOf(object('Pod'), { status: 'CrashLoopBackOff' })).toEqual({ state: 'CrashLoopBackOff', tone: 'bad' })
  expect(headlineOf(object('Pod', { status: { phase: 'Running' } }), undefined)).toEqual({ state: 'Running', tone: 'good' })
  expect(headlineOf(object('Deployment'), { ready: '1/2' })).toEqual({ state: '1/2', tone: 'warn' })
  expect(headlineOf(object('ConfigMap'), undefined)).toBeUndefined()
})

it('a failing condition is the reason', () => {
  expect(headlineOf(object('Deployment', { status: UNAVAILABLE }), { ready: '0/2' })?.reason).toBe('MinimumReplicasUnavailable: no minimum availability')
})

it('an object that is being deleted is Terminating', () => {
  const metadata = { name: 'web', deletionTimestamp: '2026-01-01T00:00:00Z' }
  expect(headlineOf(object('Pod', { metadata }), { status: 'Running' })).toEqual({ state: 'Terminating', tone: 'busy' })
})
