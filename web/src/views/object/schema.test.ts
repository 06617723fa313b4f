import { describe, expect, it } from 'vitest'
import { fieldsAt, kindIn, pathAt, valuesAt, type Document } from './schema'

const document: Document = {
  components: {
    schemas: {
      Deployment: {
        type: 'object',
        'x-kubernetes-group-version-kind': [{ group: 'apps', version: 'v1', kind: 'Deployment' }],
        properties: { spec: { allOf: [{ $ref: '#/components/schemas/Spec' }], description: 'what is wanted' }, labels: { type: 'object', additionalProperties: { type: 'string' } } },
      },
      Spec: { type: 'object', required: ['containers'], properties: { replicas: { type: 'integer' }, paused: { type: 'boolean' }, containers: { type: 'array', items: { $ref: '#/components/schemas/Container' } } } },
      Container: { type: 'object', properties: { name: { type: 'string', description: 'its name' }, imagePullPolicy: { type: 'string', enum: ['Always', 'Never'] } } },
    },
  },
}

describe('fields', () => {
  const kind = kindIn(document, 'apps/v1', 'Deployment')!
  it.each([
    [[], ['spec object what is wanted', 'labels object ']],
    [['spec'], ['replicas integer ', 'paused boolean ', 'containers []object !']],
    [['spec', 'containers', '[]'], ['name string its name', 'imagePullPolicy string ']],
    [['spec', 'nosuch'], []],
  ])('at %j', (path, expected) => {
    expect(fieldsAt(kind, path).map(({ name, type, description, required }) => `${name} ${type} ${description}${required ? '!' : ''}`)).toEqual(expected)
  })

  it('have values', () => {
    expect(valuesAt(kind, ['spec', 'containers', '[]', 'imagePullPolicy'])).toEqual(['Always', 'Never'])
    expect(valuesAt(kind, ['spec', 'paused'])).toEqual(['true', 'false'])
    expect(kindIn(document, 'v1', 'Deployment')).toBeUndefined()
  })
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

it.each([
  [14, 0, []],
  [13, 2, ['spec']],
  [2, 2, ['spec']],
  [12, 4, ['spec', 'containers', '[]']],
  [11, 4, ['spec', 'containers', '[]']],
  [7, 8, ['spec', 'containers', '[]', 'ports', '[]']],
  [6, 8, ['spec', 'containers', '[]', 'ports', '[]']],
  [9, 6, ['spec', 'containers', '[]', 'env', '[]']],
])('line %i, column %i is in %j', (line, column, expected) => {
  expect(pathAt(TEXT, line, column)).toEqual(expected)
})
