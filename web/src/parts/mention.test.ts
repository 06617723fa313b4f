import { expect, it } from 'vitest'
import { readObject, readSearch } from '../api/address'
import { addressOfColumn, namespaceAddress } from './mention'

const hit = (kind: string) => ({ kind, apiVersion: 'v1', cluster: 'm1', namespace: 'shop' })

it.each([
  ['PersistentVolumeClaim', 'print:Volume', 'pv-1', ['v1', 'persistentvolumes', undefined, 'pv-1']],
  ['PersistentVolumeClaim', 'print:StorageClass', 'fast', ['storage.k8s.io/v1', 'storageclasses', undefined, 'fast']],
  ['PersistentVolume', 'print:Claim', 'shop/data', ['v1', 'persistentvolumeclaims', 'shop', 'data']],
  ['Pod', 'print:Node', 'n1', ['v1', 'nodes', undefined, 'n1']],
])('the column of %s %s names an object', (kind, column, value, expected) => {
  const address = addressOfColumn(hit(kind), column, value) ?? ''
  const { cluster, apiVersion, resource, namespace, name } = readObject(address.slice(address.indexOf('?')))
  expect([cluster, apiVersion, resource, namespace, name]).toEqual(['m1', ...expected])
})

it.each([
  ['HorizontalPodAutoscaler', 'print:Reference', 'Deployment/web', 'kind:Deployment name:=web ns:=shop cluster:=m1'],
  ['Event', 'print:Object', 'pod/web-0', 'kind:pod name:=web-0 ns:=shop cluster:=m1'],
])('the column of %s %s is a query', (kind, column, value, q) => {
  const address = addressOfColumn(hit(kind), column, value) ?? ''
  expect(readSearch(address.slice(address.indexOf('?'))).q).toBe(q)
})

it.each([
  ['Pod', 'print:Node', '<none>'],
  ['Pod', 'print:Volume', 'pv-1'],
  ['Service', 'label:app', 'web'],
  ['PersistentVolume', 'print:Claim', ''],
])('the column of %s %s with %j names no object', (kind, column, value) => expect(addressOfColumn(hit(kind), column, value)).toBeUndefined())

it('a hit names its namespace', () => expect(namespaceAddress(hit('Pod'), 'shop')).toBe('/object?cluster=m1&apiVersion=v1&resource=namespaces&name=shop'))
