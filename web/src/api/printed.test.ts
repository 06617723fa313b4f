import { expect, it } from 'vitest'
import { namesOf, pathsOf } from './printed'

it('printed columns of a definition with plain paths', () => {
  const paths = ['.spec.replicas', '.spec.hosts[0]', '.metadata.creationTimestamp', '.status.conditions[?(@.type=="Ready")].status', '.spec.a,b']
  expect(pathsOf(paths.map((jsonPath) => ({ jsonPath })))).toEqual(['.spec.replicas', '.spec.hosts[0]'])
  expect(pathsOf(undefined)).toEqual([])
})

it('printed columns without duplicates', () => {
  const hit = { cluster: 'm1', apiVersion: 'v1', kind: 'Pod', resource: 'pods', name: 'a', matched: [], ready: '1/1', node: 'n1' }
  const columns = { 'print:Name': 'a', 'print:Ready': '1', 'print:Node': 'n1', 'print:Ip': '10.0.0.1' }
  expect(namesOf({ ...hit, columns })).toEqual(['print:Ready', 'print:Ip'])
  expect(namesOf(hit)).toEqual([])
})
