import { expect, test } from 'vitest'
import { computeDrift } from './drift'

const managed = [
  {
    manager: 'crowsnest',
    operation: 'Apply',
    time: '2026-01-01T00:00:00Z',
    fieldsV1: { 'f:spec': { 'f:replicas': {}, 'f:template': { 'f:spec': { 'f:containers': { 'k:{"name":"web"}': { '.': {}, 'f:name': {} } } } } } },
  },
  {
    manager: 'kubectl-set',
    operation: 'Update',
    fieldsV1: { 'f:metadata': { 'f:labels': { 'f:team/x': {} } }, 'f:spec': { 'f:template': { 'f:spec': { 'f:containers': { 'k:{"name":"web"}': { 'f:image': {} } } } } } },
  },
]
const containers = (image: string, more: object = {}) => ({ template: { spec: { containers: [{ name: 'web', image, ...more }] } } })

test('differences have path, values and manager', () => {
  const desired = { spec: { replicas: 2, ...containers('nginx:1.25') } }
  const live = { metadata: { uid: 'x', labels: { 'team/x': 'a' }, managedFields: managed }, spec: { replicas: 2, ...containers('nginx:1.27', { imagePullPolicy: 'Always' }) }, status: { replicas: 2 } }
  const { changed, added } = computeDrift(desired, live)
  expect(changed).toEqual([
    { path: 'spec.template.spec.containers[0].image', desired: 'nginx:1.25', live: 'nginx:1.27', owners: [{ manager: 'kubectl-set', operation: 'Update' }] },
  ])
  expect(added.map(({ path, owners }) => [path, owners.map((owner) => owner.manager)])).toEqual([
    ['spec.template.spec.containers[0].imagePullPolicy', []],
    ['metadata', ['kubectl-set']],
  ])
})

test('list items are compared by key, in any order', () => {
  const item = (name: string, value: string) => ({ name, value })
  const { changed, added } = computeDrift({ env: [item('a', '1'), item('b', '2')] }, { env: [item('side', 'car'), item('b', '3'), item('a', '1')] })
  expect(changed.map(({ path, desired, live }) => [path, desired, live])).toEqual([['env[1].value', '2', '3']])
  expect(added.map(({ path }) => path)).toEqual(['env[0]'])
})

test('removed values are differences, empty ones are not', () => {
  const { changed, added } = computeDrift({ data: { a: '1' }, labels: {} }, { data: {} })
  expect(changed).toEqual([{ path: 'data.a', desired: '1', owners: [] }])
  expect(added).toEqual([])
})
