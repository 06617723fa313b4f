import { expect, test } from 'vitest'
import { placeAt, schemaAt, schemaOf, type OpenApi } from './schema'

const at = (text: string) => {
  const cursor = text.indexOf('|')
  const { path, taken, value, word } = placeAt(text.replace('|', ''), cursor)
  return { path: path.join('.'), taken, value, word }
}

test.each([
  ['apiVersion: v1\nki|', { path: '', taken: ['apiVersion'], value: undefined, word: 'ki' }],
  ['spec:\n  pla|', { path: 'spec', taken: [], value: undefined, word: 'pla' }],
  ['spec:\n  placement:\n    a: 1\n    |', { path: 'spec.placement', taken: ['a'], value: undefined, word: '' }],
  ['spec:\n  resourceSelectors:\n  - |', { path: 'spec.resourceSelectors.[]', taken: [], value: undefined, word: '' }],
  ['spec:\n  resourceSelectors:\n  - apiVersion: v1\n    ki|', { path: 'spec.resourceSelectors.[]', taken: ['apiVersion'], value: undefined, word: 'ki' }],
  ['spec:\n  resourceSelectors:\n    - apiVersion: v1\n      name: x\n    - kind: |', { path: 'spec.resourceSelectors.[]', taken: [], value: 'kind', word: '' }],
  ['spec:\n  tolerations:\n  - key: a\n    effect: No|', { path: 'spec.tolerations.[]', taken: ['key'], value: 'effect', word: 'No' }],
  ['kind: A\nspec:\n  x: 1\n---\nkind: B\nmetadata:\n  na|', { path: 'metadata', taken: [], value: undefined, word: 'na' }],
  ['a:\n  b:\n  - c:\n      d: 1\n  e|', { path: 'a', taken: ['b'], value: undefined, word: 'e' }],
])('%j', (text, place) => {
  expect(at(text)).toEqual(place)
})

test('the kind is read from the document at the cursor', () => {
  const text = 'apiVersion: v1\nkind: A\n---\napiVersion: x/v2\nkind: B\nspec:\n'
  const { apiVersion, kind } = placeAt(text, text.length)
  expect([apiVersion, kind]).toEqual(['x/v2', 'B'])
})

test('schemas are found by kind and followed along a path', () => {
  const api: OpenApi = {
    components: {
      schemas: {
        P: { 'x-kubernetes-group-version-kind': [{ group: 'x', version: 'v2', kind: 'B' }], properties: { spec: { allOf: [{ $ref: '#/components/schemas/S' }], description: 'told here' } } },
        S: { properties: { list: { type: 'array', items: { $ref: '#/components/schemas/I' } }, labels: { additionalProperties: { type: 'string' } } } },
        I: { properties: { effect: { type: 'string', enum: ['A', 'B'] } } },
      },
    },
  }
  const root = schemaOf(api, 'x/v2', 'B')
  expect(schemaAt(api, root, ['spec'])?.description).toBe('told here')
  expect(schemaAt(api, root, ['spec', 'list', '[]', 'effect'])?.enum).toEqual(['A', 'B'])
  expect(schemaAt(api, root, ['spec', 'labels', 'app'])?.type).toBe('string')
  expect(schemaAt(api, root, ['spec', 'nothing'])).toBeUndefined()
})

const TEXT = `kind: Deployment
spec:
  replicas: 2
  containers:
  - image: nginx
    ports:
      - containerPort: 80
        name: x
    env:
    - name: A

    na
  - na
  pa
me`.split('\n')

test.each([
  [14, 0, []],
  [13, 2, ['spec']],
  [2, 2, ['spec']],
  [12, 4, ['spec', 'containers', '[]']],
  [11, 4, ['spec', 'containers', '[]']],
  [7, 8, ['spec', 'containers', '[]', 'ports', '[]']],
  [6, 8, ['spec', 'containers', '[]', 'ports', '[]']],
  [9, 6, ['spec', 'containers', '[]', 'env', '[]']],
])('line %i, column %i is in %j', (line, column, expected) => {
  const at = TEXT.slice(0, line).join('\n').length + 1 + column
  expect(placeAt(TEXT.join('\n'), at).path).toEqual(expected)
})
