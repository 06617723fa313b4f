import { expect, test } from 'vitest'
import { locate, parseManifests, splitPath, withoutServerFields } from './manifest'

const TEXT = `apiVersion: v1
kind: ConfigMap
metadata:
  name: a
---
# nothing
---
apiVersion: policy.karmada.io/v1alpha1
kind: PropagationPolicy
metadata:
  name: b
  labels:
    app.kubernetes.io/name: x
spec:
  resourceSelectors:
  - apiVersion: v1
    kind: ConfigMap
`

test('documents are parsed, and empty ones skipped', () => {
  const { manifests, problems } = parseManifests(TEXT)
  expect(problems).toEqual([])
  expect(manifests.map(({ object }) => object.metadata.name)).toEqual(['a', 'b'])
})

test.each([
  ['spec.resourceSelectors[0].kind', 'ConfigMap'],
  ['metadata.labels[app.kubernetes.io/name]', 'x'],
  // An absent field has the position of its closest parent.
  ['spec.placement.clusterAffinity', 'spec'],
  ['spec.resourceSelectors[3].name', 'resourceSelectors'],
])('%s is located at %s', (path, text) => {
  const manifest = parseManifests(TEXT).manifests[1]!
  const { from, to } = locate(manifest, path)
  expect(TEXT.slice(from, to)).toBe(text)
})

test('paths of errors are split', () => {
  expect(splitPath('spec.a[0].b["x.y/z"].c[k.l]')).toEqual(['spec', 'a', 0, 'b', 'x.y/z', 'c', 'k.l'])
})

test('errors in YAML have a position', () => {
  const { manifests, problems } = parseManifests('a: [1\nb: 2')
  expect(manifests).toEqual([])
  expect(problems.length).toBeGreaterThan(0)
  expect(parseManifests('a: b\n---\n- 1')).toMatchObject({ manifests: [{ object: { a: 'b' } }], problems: [], nonObjects: [{ from: 9 }] })
})

test('a draft is parsed as the API server parses it', () => {
  const [manifest] = parseManifests('a: &a [1, 2]\nb: *a\non: yes\nmode: 0644\nat: 2026-01-01\n').manifests
  expect(manifest?.object).toEqual({ a: [1, 2], b: [1, 2], true: true, mode: 420, at: '2026-01-01' })
  const laughs = ['a: &a [x, x, x, x, x, x, x, x, x, x]', 'b: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a, *a]', 'c: &c [*b, *b, *b, *b, *b, *b, *b, *b, *b, *b]', 'd: [*c, *c, *c]'].join('\n')
  expect(parseManifests(laughs)).toMatchObject({ manifests: [], problems: [{ message: expect.stringContaining('alias') }] })
})

test('server fields are removed', () => {
  const object = { apiVersion: 'v1', kind: 'X', metadata: { name: 'a', uid: 'u', resourceVersion: '7', annotations: { 'resource.karmada.io/cached-from-cluster': 'm' } }, status: {} }
  expect(withoutServerFields(object, { version: true })).toEqual({ apiVersion: 'v1', kind: 'X', metadata: { name: 'a', resourceVersion: '7' } })
})
