import { expect, it } from 'vitest'
import type { Hit } from '../../api/types'
import { logParameters, type LogRequest } from './useLogs'
import { objectParameters, copiesQuery, toFieldPath, isVolatile, toSpecVersions, readWarnings, findVersion, versionOfHit, withoutValues, type VersionSelector } from './objects'

it.each([
  [{ at: Date.parse('2026-01-04T00:00:00Z') }, 4],
  [{ at: Date.parse('2026-01-02T12:00:00Z') }, 3],
  [{ at: Date.parse('2026-01-02T00:00:00Z') }, 3],
  [{ at: Date.parse('2026-01-01T12:00:00Z') }, 1],
  [{ at: Date.parse('2025-12-31T00:00:00Z') }, undefined],
  // Began and ended in the second in which version 3 began.
  [{ seq: 2 }, 2],
  [{ seq: 9 }, undefined],
] as [VersionSelector, number | undefined][])('the version that %j selects is %s', (selector, expected) => {
  const version = (seq: number, from: string) => ({ seq, resourceVersion: String(seq), generation: 1, from })
  const versions = [version(4, '2026-01-03T00:00:00Z'), version(3, '2026-01-02T00:00:00Z'), version(2, '2026-01-02T00:00:00Z'), version(1, '2026-01-01T00:00:00Z')]
  expect(findVersion(versions, selector)?.seq).toBe(expected)
})

it.each([
  ['its seq and end', 2, '2026-01-02T00:00:00Z', 2],
  ['its seq, if another ended in the same second', 1, '2026-01-02T00:00:00Z', 1],
  ['its end, if no version has its seq', 9, '2026-01-03T00:00:00Z', 3],
  ['its end, if another version has its seq', 1, '2026-01-03T00:00:00Z', 3],
  ['its end, if the current version has its seq', 4, '2026-01-03T00:00:00Z', 3],
  ['its end, which another replica observed a second later', 9, '2026-01-02T23:59:59Z', 3],
  ['its end, which another replica observed a second earlier', 9, '2026-01-02T00:00:01Z', 2],
  ['no other end, if none is close', 9, '2026-01-02T12:00:00Z', undefined],
] as [string, number, string, number | undefined][])('a version that has ended is found by %s', (_, seq, end, expected) => {
  const version = (nth: number, until?: string) => ({ seq: nth, resourceVersion: String(nth), generation: 1, from: '2026-01-01T00:00:00Z', ...(until !== undefined && { until }) })
  const versions = [version(4), version(3, '2026-01-03T00:00:00Z'), version(2, '2026-01-02T00:00:00Z'), version(1, '2026-01-02T00:00:00Z')]
  expect(findVersion(versions, { seq, end })?.seq).toBe(expected)
})

it.each([
  ['of the present', {}, undefined, undefined],
  ['of a moment', {}, 1_000, { at: 1_000_000 }],
  ['whose version was replaced', { seq: 7, until: '2026-01-02T00:00:00Z' }, 1_000, { seq: 7, end: '2026-01-02T00:00:00Z' }],
  ['that is deleted', { seq: 7, deleted: '2026-01-03T00:00:00Z' }, undefined, { seq: 7, end: '2026-01-03T00:00:00Z' }],
] as [string, Pick<Hit, 'seq' | 'until' | 'deleted'>, number | undefined, VersionSelector | undefined][])('the version of a hit %s', (_, hit, moment, expected) => expect(versionOfHit(hit, moment)).toEqual(expected))

it('values of a Secret and the annotation with their copies are removed', () => {
  const lastApplied = 'kubectl.kubernetes.io/last-applied-configuration'
  const secret = { apiVersion: 'v1', kind: 'Secret', type: 'Opaque', metadata: { name: 'a', annotations: { [lastApplied]: '{"data":{"b":"c2VjcmV0"}}', kept: 'x' } }, data: { b: 'c2VjcmV0' } }
  expect(withoutValues(secret)).toEqual({ ...secret, metadata: { name: 'a', annotations: { kept: 'x' } }, data: { b: '' } })
})

it.each([
  ['/spec/containers/0/image', 'spec.containers[0].image', false],
  ['/metadata/annotations/a.b~1c', 'metadata.annotations["a.b/c"]', false],
  ['/status/replicas', 'status.replicas', true],
  ['/metadata/resourceVersion', 'metadata.resourceVersion', true],
  ['/data/status', 'data.status', false],
])('%s is the field path %s, volatile: %s', (pointer, path, volatile) => {
  expect([toFieldPath(pointer), isVolatile(pointer)]).toEqual([path, volatile])
})

it('texts of a Warning header are read', () => {
  expect(readWarnings('299 - "unknown field \\"x\\"", 299 crowsnest "old"')).toEqual(['unknown field "x"', 'old'])
  expect(readWarnings(null)).toEqual([])
})

it('objects without a namespace have no namespace parameter', () => {
  expect(objectParameters({ cluster: 'm1', apiVersion: 'v1', resource: 'nodes', name: 'n' })).toBe('cluster=m1&apiVersion=v1&resource=nodes&name=n')
})

it.each([
  [{ apiVersion: 'apps/v1', resource: 'deployments', namespace: 'shop', name: 'web' }, 'kind:deployments name:=web ns:=shop apiVersion:=apps/v1'],
  [{ apiVersion: 'rbac.authorization.k8s.io/v1', resource: 'clusterroles', name: 'system:node' }, 'kind:clusterroles name:="system:node" apiVersion:=rbac.authorization.k8s.io/v1'],
])('the query for copies of %j is %s', (ref, q) => expect(copiesQuery(ref)).toBe(q))

const request: LogRequest = { q: 'kind:pod', previous: false, follow: true }
it.each([
  ['the last lines', request, undefined, { tail: '1000', follow: 'true' }],
  ['since a time', { ...request, since: '1h', container: 'web', include: 'a|b' }, undefined, { since: '1h', container: '^web$', include: 'a|b', follow: 'true' }],
  ['around a line', { ...request, line: '2026-01-01T00:00:10Z m1 n p c' }, undefined, { sinceTime: '2026-01-01T00:00:05.000Z', follow: 'true' }],
  ['the previous run', { ...request, previous: true, tail: '5' }, undefined, { tail: '5', previous: 'true' }],
  ['resumed after an interruption', { ...request, tail: '5' }, '2026-01-01T00:00:10Z', { sinceTime: '2026-01-01T00:00:10Z', follow: 'true' }],
] as [string, LogRequest, string | undefined, Record<string, string>][])('logs: %s', (_, logRequest, resumeTime, expected) => {
  expect(Object.fromEntries(new URLSearchParams(logParameters(logRequest, resumeTime)))).toEqual({ q: 'kind:pod', maxStreams: '100', ...expected })
})

it('versions of one generation are combined into one', () => {
  const version = (seq: number, generation: number) => ({ seq, generation, resourceVersion: String(seq), from: `at ${seq}`, until: `at ${seq + 1}` })
  const versions = [version(9, 3), version(8, 3), version(7, 2), version(6, 2), version(5, 1)]
  expect(toSpecVersions(versions).map(({ seq, generation, from }) => [seq, generation, from])).toEqual([
    [9, 3, 'at 8'],
    [7, 2, 'at 6'],
    [5, 1, 'at 5'],
  ])
  // Versions of kinds without a generation are not combined.
  expect(toSpecVersions([version(2, 0), version(1, 0)])).toHaveLength(2)
})
