import { expect, it } from 'vitest'
import type { OpenApi } from './schema'
import { validate, apiVersionsIn } from './validate'

const API: OpenApi = {
  components: {
    schemas: {
      Deployment: {
        type: 'object',
        properties: {
          spec: { allOf: [{ $ref: '#/components/schemas/Spec' }] },
          metadata: { type: 'object', properties: { labels: { type: 'object', additionalProperties: { type: 'string' } } } },
        },
        'x-kubernetes-group-version-kind': [{ group: 'apps', version: 'v1', kind: 'Deployment' }],
      },
      Spec: {
        type: 'object',
        properties: {
          replicas: { type: 'integer' },
          paused: { type: 'boolean' },
          weight: { type: 'number' },
          policy: { type: 'string', enum: ['Always', 'Never'] },
          port: { type: 'string', format: 'int-or-string' },
          cpu: { $ref: '#/components/schemas/Quantity' },
          containers: { type: 'array', items: { type: 'object', properties: { name: { type: 'string' } } } },
        },
      },
      Quantity: { type: 'string' },
    },
  },
}
const MESSAGES = { wrongType: (field: string, expected: string, actual: string) => `${field}: ${actual} for ${expected}`, notAllowed: (field: string, allowed: string) => `${field}: not ${allowed}` }
const manifest = (spec: string) => `apiVersion: apps/v1\nkind: Deployment\n${spec}\n`
const problems = (text: string) => validate(text, new Map([['apps/v1', API]]), MESSAGES).map(({ from, to, message }) => [text.slice(from, to), message])

it.each([
  ['spec: {replicas: eight}', [['eight', 'spec.replicas: string for integer']]],
  ['spec: {replicas: 8}', []],
  ['spec: {replicas: "8"}', [['"8"', 'spec.replicas: string for integer']]],
  ['spec: {replicas: 1.5}', [['1.5', 'spec.replicas: number for integer']]],
  ['spec: {replicas: null}', []],
  ['spec: {weight: 3}', []],
  // A boolean as Kubernetes reads YAML.
  ['spec: {paused: yes}', []],
  ['spec: {paused: maybe}', [['maybe', 'spec.paused: string for boolean']]],
  ['spec: {policy: Sometimes}', [['Sometimes', 'spec.policy: not Always, Never']]],
  ['spec: {port: 80, cpu: 1}', []],
  ['spec: {containers: [{name: a}, {name: 7}]}', [['7', 'spec.containers[1].name: integer for string']]],
  ['spec: {containers: {}}', [['{}', 'spec.containers: object for array']]],
  ['metadata: {labels: {a: 1}}', [['1', 'metadata.labels.a: integer for string']]],
  ['spec: {unknown: 1}', []],
])('%s', (spec, expected) => expect(problems(manifest(spec))).toEqual(expected))

it('every manifest of a text is checked with its own schema', () => {
  const text = `${manifest('spec: {replicas: 1}')}---\n${manifest('spec: {replicas: two}')}---\napiVersion: v1\nkind: Pod\nspec: 3\n`
  expect(problems(text)).toEqual([['two', 'spec.replicas: string for integer']])
  expect(apiVersionsIn(text)).toEqual(['apps/v1', 'v1'])
  // Invalid YAML is reported by the parser.
  expect(problems(manifest('spec: ['))).toEqual([])
})
