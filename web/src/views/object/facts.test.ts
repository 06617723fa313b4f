import { describe, expect, it } from 'vitest'
import type { KubeObject } from '../../api/types'
import { canRestart, canScale, conditions, containers, factsOf, objectOfField, podsOf, ports } from './facts'

const object = (fields: Record<string, unknown>): KubeObject => ({ apiVersion: 'v1', kind: 'Pod', metadata: { name: 'a' }, ...fields })

describe('containers', () => {
  const spec = {
    containers: [{ name: 'web', image: 'nginx:1', ports: [{ name: 'http', containerPort: 80 }, { containerPort: 53, protocol: 'UDP' }], resources: { requests: { cpu: '100m' } } }],
    initContainers: [{ name: 'first', image: 'busybox' }],
  }
  const plain = { name: 'web', image: 'nginx:1', init: false, ports: ['http 80/TCP', '53/UDP'], requests: 'cpu 100m', limits: '' }

  it('of a pod have a state', () => {
    const status = { containerStatuses: [{ name: 'web', ready: false, restartCount: 4, state: { waiting: { reason: 'CrashLoopBackOff' } } }], initContainerStatuses: [{ name: 'first', ready: true, restartCount: 0, state: { terminated: { reason: 'Completed', exitCode: 0 } } }] }
    expect(containers(object({ spec, status }))).toEqual([
      { ...plain, state: 'waiting (CrashLoopBackOff)', tone: 'bad', ready: false, restarts: 4 },
      { name: 'first', image: 'busybox', init: true, ports: [], requests: '', limits: '', state: 'terminated (Completed, exit 0)', tone: 'good', ready: true, restarts: 0 },
    ])
  })

  it.each([
    ['a template', { template: { spec } }],
    ['a CronJob', { jobTemplate: { spec: { template: { spec } } } }],
  ])('of %s', (_, spec) => {
    expect(containers(object({ spec }))[0]).toEqual(plain)
  })

  it('are empty for an object without containers', () => {
    expect(containers(object({ spec: { containers: 'many' }, status: null }))).toEqual([])
    expect(factsOf(object({}))).toEqual({ conditions: [], containers: [], ports: [], fields: [] })
  })
})

it.each([
  ['nodeName', { cluster: 'm1', apiVersion: 'v1', resource: 'nodes', name: 'a' }],
  ['serviceAccountName', { cluster: 'm1', apiVersion: 'v1', resource: 'serviceaccounts', namespace: 'n', name: 'a' }],
  ['storageClassName', { cluster: 'm1', apiVersion: 'storage.k8s.io/v1', resource: 'storageclasses', name: 'a' }],
  ['volumeName', { cluster: 'm1', apiVersion: 'v1', resource: 'persistentvolumes', name: 'a' }],
  ['clusterIP', undefined],
])('the field %s names %j', (field, expected) => expect(objectOfField({ cluster: 'm1', namespace: 'n' }, field, 'a')).toEqual(expected))

it('conditions are good or bad', () => {
  const given = [['Ready', 'True'], ['Ready', 'False'], ['MemoryPressure', 'False'], ['DiskPressure', 'True'], ['Ready', 'Unknown']]
  const status = { conditions: given.map(([type, status]) => ({ type, status })) }
  expect(conditions(object({ status })).map(({ good }) => good)).toEqual([true, false, true, false, undefined])
})

it('ports of a Service have their protocol, node port and target', () => {
  const spec = { ports: [{ name: 'http', port: 80, targetPort: 'web', nodePort: 30_000 }, { port: 53, protocol: 'UDP' }] }
  expect(ports({ ...object({ spec }), kind: 'Service' })).toEqual([
    { name: 'http', port: '80/TCP (node 30000)', target: 'web' },
    { name: '', port: '53/UDP', target: '53' },
  ])
})

it.each([
  ['v1', 'pods', 'm1', 'kind:pod name:=a ns:=n cluster:=m1'],
  ['apps/v1', 'deployments', undefined, 'kind:deployment.apps name:=a ns:=n select:pod'],
  ['batch/v1', 'cronjobs', 'm1', 'kind:cronjob.batch name:=a ns:=n cluster:=m1 select:pod'],
  ['example.io/v1', 'deployments', 'm1', undefined],
  ['v1', 'configmaps', 'm1', undefined],
])('the query for the pods of %s %s', (apiVersion, resource, cluster, expected) => {
  expect(podsOf({ apiVersion, resource, namespace: 'n', name: 'a' }, cluster)).toBe(expected)
})

it.each([
  ['apps/v1', 'deployments', true, true],
  ['apps/v1', 'replicasets', false, true],
  ['apps/v1', 'daemonsets', true, false],
  ['v1', 'replicationcontrollers', false, true],
  ['platform.example.com/v1', 'deployments', false, false],
  ['v1', 'deployments', false, false],
])('%s %s can be restarted: %s, scaled: %s', (apiVersion, resource, restart, scale) => {
  expect([canRestart({ apiVersion, resource }), canScale({ apiVersion, resource })]).toEqual([restart, scale])
})
