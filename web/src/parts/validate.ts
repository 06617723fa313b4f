// Validates types and enumerations of manifests with a cluster's OpenAPI v3. Unknown fields, formats and other rules are left to the server's
// dry run.
import { isAlias, isMap, isScalar, isSeq, type Node } from 'yaml'
import { readOpenApi, resolveRef, findSchema, type OpenApi, type Schema } from './schema'
import { parseAllYaml, type Problem } from './yaml'

/** Error messages in the user's language. */
export interface ValidationMessages {
  /** A value has another type than its field. */
  wrongType: (field: string, expected: string, actual: string) => string
  /** A value is not one of those that its field allows. */
  notAllowed: (field: string, allowed: string) => string
}

/** Group versions of a text's manifests, whose schemas `validate` needs. */
export function apiVersionsIn(text: string): string[] {
  return [...new Set(parseAllYaml(text).flatMap(({ value }) => apiVersionOf(value) ?? []))]
}

const apiVersionOf = (value: unknown) => {
  const { apiVersion } = (value ?? {}) as { apiVersion?: unknown }
  return typeof apiVersion === 'string' ? apiVersion : undefined
}

/** The OpenAPI documents that a text needs; a group version without one is not checked. */
export async function readSchemas(cluster: string, text: string): Promise<Map<string, OpenApi>> {
  const versions = apiVersionsIn(text)
  const apis = await Promise.all(versions.map((version) => readOpenApi(cluster, version)))
  return new Map(versions.flatMap((version, nth) => (apis[nth] ? [[version, apis[nth]] as const] : [])))
}

/** Problems of all manifests in a text, at the positions of their values. Manifests without a schema are not checked. */
export function validate(text: string, apis: ReadonlyMap<string, OpenApi>, messages: ValidationMessages): Problem[] {
  return parseAllYaml(text).flatMap(({ document, value, problems }) => {
    const apiVersion = apiVersionOf(value)
    const api = apiVersion === undefined ? undefined : apis.get(apiVersion)
    const { kind } = (value ?? {}) as { kind?: unknown }
    if (problems.length > 0 || !api || apiVersion === undefined || typeof kind !== 'string') return []
    const errors: Problem[] = []
    check(document.contents, findSchema(api, apiVersion, kind), '', { api, messages, errors })
    return errors
  })
}

interface CheckContext {
  api: OpenApi
  messages: ValidationMessages
  errors: Problem[]
}

function check(node: Node | null, reference: Schema | undefined, path: string, context: CheckContext): void {
  const schema = reference && !isLoose(reference) ? resolveRef(context.api, reference) : undefined
  // Servers drop null, and an alias is checked where it is defined.
  if (!schema || isLoose(schema) || !node || isAlias(node) || (isScalar(node) && node.value === null)) return
  const report = (message: string) => {
    const [from, to] = node.range ?? [0, 0]
    context.errors.push({ from, to, message })
  }
  const actual = typeOf(node)
  const expected = schema.type
  if (expected !== undefined && !(actual === expected || (actual === 'integer' && expected === 'number'))) return report(context.messages.wrongType(path, expected, actual))
  if (schema.enum && isScalar(node) && !schema.enum.some((allowed) => String(allowed) === String(node.value))) return report(context.messages.notAllowed(path, schema.enum.map(String).join(', ')))
  if (isMap(node)) {
    for (const { key, value } of node.items) {
      const name = isScalar(key) ? String(key.value) : ''
      const field = schema.properties?.[name] ?? (typeof schema.additionalProperties === 'object' ? schema.additionalProperties : undefined)
      check(value as Node | null, field, path === '' ? name : `${path}.${name}`, context)
    }
  }
  if (isSeq(node)) node.items.forEach((item, nth) => check(item as Node | null, schema.items, `${path}[${nth}]`, context))
}

/** True for schemas that allow numbers as well as strings (quantities, ports) or any value. */
function isLoose(schema: Schema): boolean {
  const referred = schema.$ref ?? schema.allOf?.[0]?.$ref ?? ''
  return schema['x-kubernetes-int-or-string'] === true || schema['x-kubernetes-preserve-unknown-fields'] === true || schema.format === 'int-or-string' || /(Quantity|IntOrString)$/.test(referred)
}

function typeOf(node: Node): string {
  if (isMap(node)) return 'object'
  if (isSeq(node)) return 'array'
  const value = isScalar(node) ? node.value : undefined
  if (typeof value === 'bigint') return 'integer'
  if (typeof value === 'number') return Number.isInteger(value) ? 'integer' : 'number'
  return typeof value === 'boolean' ? 'boolean' : 'string'
}
