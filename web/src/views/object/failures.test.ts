import { expect, it } from 'vitest'
import type { KubeObject } from '../../api/types'
import { EXIT_CODE_COLUMNS, exitCodesOf, failedSince, failuresOf, isWaiting, TIME_COLUMNS } from './failures'

const pod = (status: object): KubeObject => ({ apiVersion: 'v1', kind: 'Pod', metadata: { name: 'web-0' }, status })
const container = (more: object, status: object = {}) => pod({ phase: 'Running', containerStatuses: [{ name: 'web', ready: false, restartCount: 4, ...more }], ...status })
const condition = (type: string, more: object = {}) => ({ type, status: 'False', reason: 'ContainersNotReady', message: 'why', lastTransitionTime: '2026-01-01T00:00:00Z', ...more })
const CONDITION = { message: 'why', since: '2026-01-01T00:00:00Z', restarts: 0, previous: false }
const ENDED = { exitCode: 137, reason: 'OOMKilled', finishedAt: '2026-01-01T00:00:00Z' }

it.each([
  ['a running container', container({ ready: true, restartCount: 0, state: { running: {} } }), []],
  ['a container that is being created', container({ state: { waiting: { reason: 'ContainerCreating' } } }), []],
  [
    'a container that crashes',
    container({ state: { waiting: { reason: 'CrashLoopBackOff', message: 'back-off 40s' } }, lastState: { terminated: ENDED } }),
    [{ container: 'web', state: 'CrashLoopBackOff', message: 'back-off 40s', exitCode: 137, since: '2026-01-01T00:00:00Z', restarts: 4, previous: true }],
  ],
  ['an image that is missing', container({ restartCount: 0, state: { waiting: { reason: 'ErrImagePull', message: 'not found' } } }), [{ container: 'web', state: 'ErrImagePull', message: 'not found', restarts: 0, previous: false }]],
  ['a container that has failed', container({ state: { terminated: ENDED } }), [{ container: 'web', state: 'OOMKilled', exitCode: 137, since: '2026-01-01T00:00:00Z', restarts: 4, previous: false }]],
  ['a completed container', container({ state: { terminated: { exitCode: 0, reason: 'Completed' } } }), []],
  ['a container that runs again', container({ ready: true, state: { running: {} }, lastState: { terminated: ENDED } }), [{ container: 'web', state: 'OOMKilled', exitCode: 137, since: '2026-01-01T00:00:00Z', restarts: 4, previous: true }]],
  ['an evicted pod', pod({ phase: 'Failed', reason: 'Evicted', message: 'low on memory' }), [{ container: '', state: 'Evicted', message: 'low on memory', restarts: 0, previous: false }]],
  ['a pod that is not scheduled', pod({ phase: 'Pending', conditions: [condition('PodScheduled', { reason: 'Unschedulable' })] }), [{ ...CONDITION, container: '', state: 'Unschedulable' }]],
  ['a pod with a scheduling gate', pod({ phase: 'Pending', conditions: [condition('PodScheduled', { reason: 'SchedulingGated' })] }), [{ ...CONDITION, container: '', state: 'SchedulingGated' }]],
  [
    'a container that is not ready',
    container({ restartCount: 0, state: { running: {} } }, { conditions: [condition('Ready'), condition('ContainersReady')] }),
    [{ ...CONDITION, container: 'web', state: 'NotReady' }],
  ],
  [
    'a readiness gate',
    container({ ready: true, restartCount: 0, state: { running: {} } }, { conditions: [condition('Ready', { reason: 'ReadinessGatesNotReady' }), condition('ContainersReady', { status: 'True' })] }),
    [{ ...CONDITION, container: '', state: 'ReadinessGatesNotReady' }],
  ],
  ['a completed pod', container({ state: { terminated: { exitCode: 0 } } }, { phase: 'Succeeded', conditions: [condition('Ready', { reason: 'PodCompleted' })] }), []],
  ['another kind', { ...pod({ phase: 'Failed' }), kind: 'Deployment', apiVersion: 'apps/v1' }, []],
])('%s', (_, object, expected) => expect(failuresOf(object)).toEqual(expected))

it.each([
  ['Pending', [], true],
  ['Running', [condition('Ready')], true],
  ['Running', [condition('Ready', { status: 'True' })], false],
  ['Succeeded', [condition('Ready')], false],
] as const)('a pod of phase %s with conditions %j is waiting: %s', (phase, conditions, expected) => expect(isWaiting(pod({ phase, conditions }))).toBe(expected))

it.each([
  [['2026-01-02T00:00:00Z, 2026-01-03T00:00:00Z'], '2026-01-03T00:00:00Z'],
  [['2026-01-02T00:00:00Z', '', '', '2026-01-05T00:00:00Z'], '2026-01-05T00:00:00Z'],
  [[], '2026-01-01T00:00:00Z'],
])('a pod with the times %j fails since %s', (times, expected) => {
  const columns = Object.fromEntries(times.map((time, nth) => [TIME_COLUMNS[nth], time]))
  expect(failedSince({ created: '2026-01-01T00:00:00Z', columns })).toBe(expected)
})

const INIT = '.status.initContainerStatuses[*].'
const MAIN = '.status.containerStatuses[*].'

it.each([
  ['of a container that crashes', { [`${MAIN}lastState.terminated.exitCode`]: '137' }, '137'],
  ['of a container that has failed now, not before', { [`${MAIN}state.terminated.exitCode`]: '2', [`${MAIN}lastState.terminated.exitCode`]: '137' }, '2'],
  ['of an init container, while another one has completed', { [`${INIT}state.terminated.exitCode`]: '0, 3' }, '3'],
  ['of a previous run, after an init container has completed', { [`${INIT}state.terminated.exitCode`]: '0', [`${MAIN}lastState.terminated.exitCode`]: '1' }, '1'],
  ['of several containers', { [`${MAIN}lastState.terminated.exitCode`]: '1, 137, 1' }, '1, 137'],
  ['of a completed pod', { [`${MAIN}state.terminated.exitCode`]: '0' }, ''],
  ['of a pod that waits', undefined, ''],
])('exit codes %s', (_, columns, expected) => {
  expect(Object.keys(columns ?? {}).every((column) => EXIT_CODE_COLUMNS.includes(column))).toBe(true)
  expect(exitCodesOf(columns ? { columns } : {})).toBe(expected)
})
