import { expect, it } from 'vitest'
import type { Hit } from '../api/types'
import { kindQueryOf, onlyKindOf, namesForNarrowScreen, numericColumns, requestedColumnNames, shownColumns, viewOfQuery, wideColumns } from './kindColumns'

it.each([
  ['kind:pod', 'Pod'],
  ['kind:po ns:shop', 'Pod'],
  ['kind:Deployment sort:name', 'Deployment'],
  ['kind:certificate', 'certificate'],
  ['kind:deployments.apps', 'Deployment'],
  ['kind:Ingress.networking.k8s.io', 'Ingress'],
  ['kind:deployments.example.io', 'deployments.example.io'],
  ['kind:pod,deploy', undefined],
  ['-kind:pod', undefined],
  ['kind:workload', undefined],
  ['kind:p*', undefined],
  ['kind:pod OR web', undefined],
  ['web', undefined],
])('the only kind of %s is %s', (q, kind) => expect(onlyKindOf(q)).toBe(kind))

it.each([
  ['kind:widget ns:shop sort:name', 'kind:widget'],
  ['ns:shop kind:widget apiVersion:example.com/v1', 'kind:widget apiVersion:example.com/v1'],
  ['kind:Service apiversion:=serving.knative.dev/v1 web', 'kind:Service apiversion:=serving.knative.dev/v1'],
  ['kind:widget -apiVersion:example.com/v1beta1 group:example.com', 'kind:widget -apiVersion:example.com/v1beta1 group:example.com'],
  ['kind:Deployments.apps ns:shop', 'kind:deployments.apps'],
  ['kind:pod,node apiVersion:v1', undefined],
  ['kind:widget OR apiVersion:v1', undefined],
  ['apiVersion:v1', undefined],
])('the columns of %s are those of %s', (q, expected) => expect(kindQueryOf(q)).toBe(expected))

const hit = (more: Partial<Hit>): Hit => ({ cluster: 'm1', apiVersion: 'v1', kind: 'Pod', resource: 'pods', namespace: 'shop', name: 'web-0', matched: [], ...more })

it('empty columns are hidden, unless they are chosen', () => {
  const hits = [hit({ status: 'Running', restarts: 0 })]
  expect(shownColumns(undefined, 'Pod', hits, false)).toEqual(['cluster', 'namespace', 'name', 'status', 'restarts'])
  expect(shownColumns(['name', 'node'], 'Pod', hits, false)).toEqual(['name', 'node'])
  expect(shownColumns(undefined, 'Pod', [], false)).toContain('node')
  expect(shownColumns(undefined, undefined, hits, false)).toEqual(['cluster', 'kind', 'namespace', 'name', 'status', 'restarts'])
})

it('a kind that is not in the table has its printed columns', () => {
  const hits = [hit({ columns: { 'print:Name': 'web', 'print:Issuer': 'acme', 'print:Age': '3d' } })]
  expect(shownColumns(undefined, 'certificate', hits, false)).toEqual(['cluster', 'namespace', 'name', 'print:Issuer'])
})

it.each([
  { chosen: undefined, kind: 'Pod', requested: [] },
  { chosen: undefined, kind: 'Service', requested: ['print:*'] },
  { chosen: undefined, kind: 'certificate', requested: ['print:*'] },
  { chosen: undefined, kind: undefined, requested: [] },
  { chosen: ['name', 'print:IP', 'label:app'], kind: 'Pod', requested: ['label:app', 'print:IP'] },
])('columns requested for $kind with $chosen', ({ chosen, kind, requested }) => expect(requestedColumnNames(chosen, kind)).toEqual(requested))

it.each([
  { chosen: undefined, kind: 'Pod', paths: [], requested: ['print:*'] },
  { chosen: ['name', 'label:app'], kind: 'Pod', paths: [], requested: ['label:app', 'print:*'] },
  { chosen: undefined, kind: 'certificate', paths: ['.spec.dnsNames[0]'], requested: ['.spec.dnsNames[0]', 'print:*'] },
  { chosen: undefined, kind: undefined, paths: [], requested: [] },
])('columns requested for a wide table of $kind with $chosen', ({ chosen, kind, paths, requested }) => expect(requestedColumnNames(chosen, kind, paths)).toEqual(requested))

it('a wide table adds printed columns with a value that are not shown yet', () => {
  const hits = [
    hit({ columns: { 'print:Name': 'web-0', 'print:IP': '10.0.0.1', 'print:Nominated Node': '<none>', 'print:Images': 'nginx' } }),
    hit({ columns: { 'print:Readiness Gates': '1/1', '.spec.issuer': 'acme' } }),
  ]
  expect(wideColumns(['name', 'images'], hits, ['.spec.issuer', '.spec.none'])).toEqual(['print:IP', 'print:Readiness Gates', '.spec.issuer'])
  expect(wideColumns(['name', 'print:IP'], hits, [])).toEqual(['print:Images', 'print:Readiness Gates'])
  expect(wideColumns(['name'], [], ['.spec.issuer'])).toEqual([])
})

it('name and status are the first columns on a narrow screen', () => {
  expect(namesForNarrowScreen(['cluster', 'namespace', 'name', 'status'])).toEqual(['name', 'status', 'cluster', 'namespace'])
})

it('requested columns of numbers are found by their values', () => {
  const hits = [hit({ columns: { 'print:Data': '3', 'print:Type': 'Opaque' } }), hit({ columns: { 'print:Data': '12' } })]
  expect(numericColumns(['restarts', 'print:Data', 'print:Type', 'print:None'], hits)).toEqual(['print:Data'])
})

it.each([
  ['kind:pod sort:name', { columns: ['name'], wide: true }],
  ['kind:po web', { columns: ['name'], wide: true }],
  ['kind:node', {}],
  ['web', {}],
])('a table that was chosen for kind:pod is that of %s: %j', (q, expected) => {
  expect(viewOfQuery({ q: 'kind:pod', columns: ['name'], wide: true, live: true }, q)).toEqual({ q, live: true, ...expected })
})
