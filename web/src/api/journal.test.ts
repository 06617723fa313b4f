import { expect, it } from 'vitest'
import { CONTROL_PLANE } from './client'
import { journalNameOf, parseEntries, canHaveJournal } from './journal'
import type { KubeEvent } from './types'

const event = (name: string, at: string, action: string, before?: string): KubeEvent => ({
  apiVersion: 'v1',
  kind: 'Event',
  metadata: {
    name,
    namespace: 'shop',
    annotations: {
      'journal.crowsnest.io/cause': JSON.stringify({ text: 'why', ...(before && { event: `shop/${before}` }) }),
      'journal.crowsnest.io/entry': JSON.stringify({ action }),
    },
  },
  eventTime: at,
  type: 'Normal',
  reason: action,
  message: `${action} happened`,
  involvedObject: { kind: 'Deployment', namespace: 'shop', name: 'web' },
})

it('entries are ordered, each with its causes', () => {
  const unrelated = { ...event('other', '2026-01-01T10:00:00Z', 'x'), metadata: { name: 'other', namespace: 'shop' } }
  const entries = parseEntries([
    event('moved', '2026-01-01T10:05:02.1Z', 'Rescheduled', 'evicted'),
    unrelated,
    event('evicted', '2026-01-01T10:05:01.1Z', 'Evicted', 'tainted'),
    event('tainted', '2026-01-01T10:05:01.9Z', 'ClusterTainted', 'gone'),
  ])
  expect(entries.map(({ action, causes }) => [action, causes])).toEqual([
    ['ClusterTainted', []],
    ['Evicted', ['shop/tainted']],
    ['Rescheduled', ['shop/evicted', 'shop/tainted']],
  ])
})

it('a cause written after its effect is sorted before it', () => {
  const entries = parseEntries([
    event('gone', '2026-01-01T10:05:21.4Z', 'ClusterFlipped'),
    event('evicted', '2026-01-01T10:05:21.7Z', 'Evicted', 'tainted'),
    event('tainted', '2026-01-01T10:05:22.2Z', 'ClusterTainted', 'gone'),
    event('between', '2026-01-01T10:05:22.1Z', 'Rescheduled'),
  ])
  expect(entries.map(({ action }) => action)).toEqual(['ClusterFlipped', 'ClusterTainted', 'Evicted', 'Rescheduled'])
})

it('cyclic causes do not loop', () => {
  const entries = parseEntries([event('a', '2026-01-01T10:05:02Z', 'A', 'b'), event('b', '2026-01-01T10:05:02Z', 'B', 'a')])
  expect(entries.map(({ causes }) => causes)).toEqual([['shop/b'], ['shop/a']])
})

it('an annotation that is not JSON is skipped', () => {
  const broken = event('a', '2026-01-01T10:05:02Z', 'A')
  broken.metadata.annotations = { 'journal.crowsnest.io/cause': '{', 'journal.crowsnest.io/entry': '{}' }
  expect(parseEntries([broken])).toEqual([])
})

it('objects and bindings have a name in the journal', () => {
  const web = { cluster: CONTROL_PLANE, apiVersion: 'apps/v1', resource: 'deployments', namespace: 'shop', name: 'web' }
  const binding = { cluster: CONTROL_PLANE, apiVersion: 'work.karmada.io/v1alpha2', resource: 'resourcebindings', namespace: 'shop', name: 'web-deployment' }
  const bound = { apiVersion: '', kind: 'ResourceBinding', metadata: { name: '' }, spec: { resource: { apiVersion: 'apps/v1', kind: 'Deployment', namespace: 'shop', name: 'web' } } }
  expect([journalNameOf(web, undefined), journalNameOf(binding, bound), journalNameOf(binding, undefined)]).toEqual(['deployments.apps/shop/web', 'deployment.apps/shop/web', undefined])
  expect(journalNameOf({ cluster: CONTROL_PLANE, apiVersion: 'cluster.karmada.io/v1alpha1', resource: 'clusters', name: 'm1' }, undefined)).toBe('clusters.cluster.karmada.io//m1')
})

it('a copy has the journal of its template', () => {
  const copy = { apiVersion: 'v1', kind: 'ConfigMap', metadata: { name: 'a', labels: { 'karmada.io/managed': 'true' } } }
  const unmanaged = { apiVersion: 'v1', kind: 'ConfigMap', metadata: { name: 'a' } }
  const ref = { cluster: 'm1', apiVersion: 'v1', resource: 'configmaps', name: 'a' }
  expect([canHaveJournal(ref, copy), canHaveJournal(ref, unmanaged), canHaveJournal({ ...ref, cluster: CONTROL_PLANE }, unmanaged)]).toEqual([true, false, true])
})
