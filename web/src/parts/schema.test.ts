import { afterEach, expect, test, vi } from 'vitest'
import { cursorContextAt, readOpenApi, schemaAt, findSchema, type OpenApi } from './schema'

afterEach(() => vi.unstubAllGlobals())

const at = (text: string) => {
  const cursor = text.indexOf('|')
  const { path, existingKeys, valueKey, word } = cursorContextAt(text.replace('|', ''), cursor)
  return { path: path.join('.'), existingKeys, valueKey, word }
}

test.each([
  ['apiVersion: v1\nki|', { path: '', existingKeys: ['apiVersion'], valueKey: undefined, word: 'ki' }],
  ['spec:\n  pla|', { path: 'spec', existingKeys: [], valueKey: undefined, word: 'pla' }],
  ['spec:\n  placement:\n    a: 1\n    |', { path: 'spec.placement', existingKeys: ['a'], valueKey: undefined, word: '' }],
  ['spec:\n  resourceSelectors:\n  - |', { path: 'spec.resourceSelectors.[]', existingKeys: [], valueKey: undefined, word: '' }],
  ['spec:\n  resourceSelectors:\n  - apiVersion: v1\n    ki|', { path: 'spec.resourceSelectors.[]', existingKeys: ['apiVersion'], valueKey: undefined, word: 'ki' }],
  ['spec:\n  resourceSelectors:\n    - apiVersion: v1\n      name: x\n    - kind: |', { path: 'spec.resourceSelectors.[]', existingKeys: [], valueKey: 'kind', word: '' }],
  ['spec:\n  tolerations:\n  - key: a\n    effect: No|', { path: 'spec.tolerations.[]', existingKeys: ['key'], valueKey: 'effect', word: 'No' }],
  ['kind: A\nspec:\n  x: 1\n---\nkind: B\nmetadata:\n  na|', { path: 'metadata', existingKeys: [], valueKey: undefined, word: 'na' }],
  ['a:\n  b:\n  - c:\n      d: 1\n  e|', { path: 'a', existingKeys: ['b'], valueKey: undefined, word: 'e' }],
])('%j', (text, context) => {
  expect(at(text)).toEqual(context)
})

test('the kind is read from the document at the cursor', () => {
  const text = 'apiVersion: v1\nkind: A\n---\napiVersion: x/v2\nkind: B\nspec:\n'
  const { apiVersion, kind } = cursorContextAt(text, text.length)
  expect([apiVersion, kind]).toEqual(['x/v2', 'B'])
})

test('a schema is found by kind and path', () => {
  const api: OpenApi = {
    components: {
      schemas: {
        P: { 'x-kubernetes-group-version-kind': [{ group: 'x', version: 'v2', kind: 'B' }], properties: { spec: { allOf: [{ $ref: '#/components/schemas/S' }], description: 'of the reference' } } },
        S: { properties: { list: { type: 'array', items: { $ref: '#/components/schemas/I' } }, labels: { additionalProperties: { type: 'string' } } } },
        I: { properties: { effect: { type: 'string', enum: ['A', 'B'] } } },
      },
    },
  }
  const root = findSchema(api, 'x/v2', 'B')
  expect(schemaAt(api, root, ['spec'])?.description).toBe('of the reference')
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
  expect(cursorContextAt(TEXT.join('\n'), at).path).toEqual(expected)
})

test('a document is read once, and again after a failed request', async () => {
  const responses = [new Response('broken', { status: 500 }), new Response('{"components": {}}')]
  const paths: string[] = []
  vi.stubGlobal('fetch', (path: string) => {
    paths.push(path)
    return Promise.resolve(responses[paths.length - 1] ?? new Response('', { status: 500 }))
  })
  expect(await readOpenApi('@control-plane', 'apps/v1')).toBeUndefined()
  expect(await readOpenApi('@control-plane', 'apps/v1')).toEqual({ components: {} })
  expect(await readOpenApi('@control-plane', 'apps/v1')).toEqual({ components: {} })
  expect(paths).toEqual(['/openapi/v3/apis/apps/v1', '/openapi/v3/apis/apps/v1'])
})
