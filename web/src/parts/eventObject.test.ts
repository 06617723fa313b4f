import { expect, test } from 'vitest'
import { eventObjectQuery } from './eventObject'

const event = { kind: 'Event', apiVersion: 'v1', cluster: 'm1', namespace: 'shop' }

test.each([
  ['a pod', event, 'print:Object', 'pod/web-0', 'kind:pod name:=web-0 ns:=shop cluster:=m1'],
  ['a kind with a group', { ...event, apiVersion: 'events.k8s.io/v1' }, 'print:Object', 'deployment.apps/web', 'kind:deployment.apps name:=web ns:=shop cluster:=m1'],
  ['a node', { ...event, namespace: 'default' }, 'print:Object', 'node/n1', 'kind:node name:=n1 cluster:=m1'],
  ['the control plane', { ...event, cluster: '@control-plane' }, 'print:Object', 'resourcebinding/web', 'kind:resourcebinding name:=web ns:=shop cluster:=@control-plane'],
  ['another column', event, 'print:Reason', 'pod/web-0', undefined],
  ['another kind', { ...event, kind: 'Pod' }, 'print:Object', 'pod/web-0', undefined],
  ['an Event of another group', { ...event, apiVersion: 'example.com/v1' }, 'print:Object', 'pod/web-0', undefined],
  ['no name', event, 'print:Object', 'pod/', undefined],
] as const)('%s', (_, hit, column, value, query) => expect(eventObjectQuery(hit, column, value)).toBe(query))
