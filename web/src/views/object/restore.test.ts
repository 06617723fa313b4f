import { expect, test } from 'vitest'
import type { KubeObject } from '../../api/types'
import { restoreVersion } from './restore'

const version: KubeObject = {
  apiVersion: 'apps/v1',
  kind: 'Deployment',
  metadata: { name: 'web', namespace: 'shop', uid: 'u', resourceVersion: '5', generation: 2, creationTimestamp: 'then', labels: { app: 'web' }, annotations: { cut: 'short' }, finalizers: ['x'] },
  spec: { replicas: 2, limit: 9007199254740993n },
  status: { replicas: 2 },
}

test('the current object keeps its identity, annotations and status', () => {
  const current: KubeObject = {
    apiVersion: 'apps/v1',
    kind: 'Deployment',
    metadata: { name: 'web', namespace: 'shop', uid: 'u', resourceVersion: '9', labels: { app: 'web', added: 'later' }, annotations: { whole: 'text' }, managedFields: [] },
    spec: { replicas: 7, paused: true },
    status: { replicas: 7 },
  }
  expect(restoreVersion(current, version)).toEqual({
    apiVersion: 'apps/v1',
    kind: 'Deployment',
    metadata: { name: 'web', namespace: 'shop', uid: 'u', resourceVersion: '9', labels: { app: 'web' }, annotations: { whole: 'text' } },
    spec: { replicas: 2, limit: 9007199254740993n },
    status: { replicas: 7 },
  })
})

test('a deleted object is created without fields of the server', () => {
  expect(restoreVersion(undefined, version)).toEqual({
    apiVersion: 'apps/v1',
    kind: 'Deployment',
    metadata: { name: 'web', namespace: 'shop', labels: { app: 'web' }, annotations: { cut: 'short' } },
    spec: { replicas: 2, limit: 9007199254740993n },
  })
})
