import { expect, test } from 'vitest'
import type { Difference } from '../../api/propagation'
import type { KubeObject } from '../../api/types'
import { historyText } from '../../text/history'
import { hasManagers, managerAt, summaryOf, withoutSecretValues } from './summary'

const image = (before: string, after: string): Difference => ({ path: '/spec/template/spec/containers/0/image', before, after })
const replicas: Difference = { path: '/spec/replicas', before: 2, after: 3 }

test.each([
  ['a tag', [image('nginx:1.25', 'nginx:1.27')], 'image 1.25 → 1.27'],
  ['a repository', [image('nginx:1.25', 'ghcr.io/a/nginx:1.25')], 'image nginx:1.25 → ghcr.io/a/nginx:1.25'],
  ['a registry with a port', [image('r:5000/web:1', 'r:5000/web:2')], 'image 1 → 2'],
  ['replicas', [replicas], 'replicas 2 → 3'],
  ['the image comes first', [replicas, image('a:1', 'a:2')], 'image 1 → 2, replicas 2 → 3'],
  ['a restart', [{ path: '/spec/template/metadata/annotations/kubectl.kubernetes.io~1restartedAt', after: '2026-01-01T00:00:00Z' }], 'restarted'],
  ['an added field', [{ path: '/spec/paused', after: true }], 'paused added'],
  ['a removed label', [{ path: '/metadata/labels/app', before: 'web' }], 'app removed'],
  ['a whole list', [{ path: '/spec/rules', before: [], after: [1] }], 'rules changed'],
  ['an int64', [{ path: '/spec/limit', before: 9007199254740993n, after: 9007199254740994n }], 'limit 9007199254740993 → 9007199254740994'],
  ['a long text', [{ path: '/data/config', before: 'a', after: 'x'.repeat(50) }], 'config changed'],
  ['an empty text', [{ path: '/data/a', before: '', after: 'b' }], 'a "" → b'],
  ['the status alone', [{ path: '/status/replicas', before: 1, after: 2 }], 'status only'],
  ['nothing', [], 'no visible change'],
  ['many', [1, 2, 3, 4, 5].map((nth) => ({ path: `/data/k${nth}`, after: 'x' })), 'k1 added, k2 added, k3 added, and 2 more'],
] as [string, Difference[], string][])('%s', (_, differences, expected) => expect(summaryOf(differences, historyText.en)).toBe(expected))

test('values of Secrets are not shown', () => {
  const differences = [{ path: '/data/password', before: 'b2xk', after: 'bmV3' }, { path: '/data/added', after: 'eA==' }, { path: '/metadata/labels/app', before: 'a', after: 'b' }]
  expect(summaryOf(withoutSecretValues(differences), historyText.en)).toBe('password changed, added added, app a → b')
})

const managed = (...fields: object[]): KubeObject => ({ apiVersion: 'v1', kind: 'Pod', metadata: { name: 'a', managedFields: fields } })

test.each([
  ['a manager that wrote in that second', managed({ manager: 'kubectl', time: '2026-01-01T00:00:10Z' }), 'kubectl'],
  ['another time', managed({ manager: 'kubectl', time: '2026-01-01T00:01:00Z' }), undefined],
  ['writers of the status', managed({ manager: 'kubelet', subresource: 'status', time: '2026-01-01T00:00:10Z' }), undefined],
  ['two managers', managed({ manager: 'a', time: '2026-01-01T00:00:10Z' }, { manager: 'b', time: '2026-01-01T00:00:11Z' }), undefined],
  ['a deleted object', undefined, undefined],
] as const)('%s', (_, object, expected) => expect(managerAt(object, '2026-01-01T00:00:10.5Z')).toBe(expected))

test.each([
  ['a version with managed fields', managed({ manager: 'kubectl', time: '2026-01-01T00:00:10Z' }), true],
  ['a version without managed fields', { apiVersion: 'v1', kind: 'Pod', metadata: { name: 'a' } }, false],
  ['no version', undefined, false],
] as const)('%s has managers: %s', (_, version, expected) => {
  expect(hasManagers(version)).toBe(expected)
  expect(managerAt(version, '2026-01-01T00:00:10Z')).toBe(expected ? 'kubectl' : undefined)
})
