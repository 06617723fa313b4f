import { expect, it } from 'vitest'
import { printedColumnNames, plainPaths } from './printed'

it('only plain paths of a definition become columns', () => {
  const paths = ['.spec.replicas', '.spec.hosts[0]', '.metadata.creationTimestamp', '.status.conditions[?(@.type=="Ready")].status', '.spec.a,b']
  expect(plainPaths(paths.map((jsonPath) => ({ jsonPath })))).toEqual(['.spec.replicas', '.spec.hosts[0]'])
  expect(plainPaths(undefined)).toEqual([])
})

it('printed columns that duplicate other columns are omitted', () => {
  const hit = { cluster: 'm1', apiVersion: 'v1', kind: 'Pod', resource: 'pods', name: 'a', matched: [], ready: '1/1', node: 'n1' }
  const columns = { 'print:Name': 'a', 'print:Ready': '1', 'print:Node': 'n1', 'print:Ip': '10.0.0.1' }
  expect(printedColumnNames({ ...hit, columns })).toEqual(['print:Ready', 'print:Ip'])
  expect(printedColumnNames(hit)).toEqual([])
})
