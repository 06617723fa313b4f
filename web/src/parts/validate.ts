// Checks the values of manifests against a cluster's OpenAPI v3: types and enumerations. Unknown fields, formats and everything else
// are left to the server's dry run.
import { isAlias, isMap, isScalar, isSeq, type Node } from 'yaml'
import { openApiOf, resolve, schemaOf, type OpenApi, type Schema } from './schema'
import { parseAll, type Problem } from './yaml'

export interface Words {
  /** A value has another type than its field. */
  wrongType: (field: string, wanted: string, given: string) => string
  /** A value is not one of those that its field allows. */
  notAllowed: (field: string, allowed: string) => string
}

/** Group versions of a text's manifests, whose schemas `validate` needs. */
export function versionsIn(text: string): string[] {
  return [...new Set(parseAll(text).flatMap(({ value }) => apiVersionOf(value) ?? []))]
}

const apiVersionOf = (value: unknown) => {
  const { apiVersion } = (value ?? {}) as { apiVersion?: unknown }
  return typeof apiVersion === 'string' ? apiVersion : undefined
}

/** The OpenAPI documents that a text needs; a group version without one is not checked. */
export async function schemasOf(cluster: string, text: string): Promise<Map<string, OpenApi>> {
  const versions = versionsIn(text)
  const apis = await Promise.all(versions.map((version) => openApiOf(cluster, version)))
  return new Map(versions.flatMap((version, nth) => (apis[nth] ? [[version, apis[nth]] as const] : [])))
}

/** Problems of all manifests in a text, at the positions of the values. Without a schema there are none. */
export function validate(text: string, apis: ReadonlyMap<string, OpenApi>, words: Words): Problem[] {
  return parseAll(text).flatMap(({ document, value, problems }) => {
    const apiVersion = apiVersionOf(value)
    const api = apiVersion === undefined ? undefined : apis.get(apiVersion)
    const { kind } = (value ?? {}) as { kind?: unknown }
    if (problems.length > 0 || !api || apiVersion === undefined || typeof kind !== 'string') return []
    const found: Problem[] = []
    check(document.contents, schemaOf(api, apiVersion, kind), '', { api, words, found })
    return found
  })
}

interface Checking {
  api: OpenApi
  words: Words
  found: Problem[]
}

function check(node: Node | null, named: Schema | undefined, path: string, of: Checking): void {
  const schema = named && !isLoose(named) ? resolve(of.api, named) : undefined
  // Servers drop null, and an alias is checked where it is defined.
  if (!schema || isLoose(schema) || !node || isAlias(node) || (isScalar(node) && node.value === null)) return
  const report = (message: string) => {
    const [from, to] = node.range ?? [0, 0]
    of.found.push({ from, to, message })
  }
  const given = typeOf(node)
  const wanted = schema.type
  if (wanted !== undefined && !(given === wanted || (given === 'integer' && wanted === 'number'))) return report(of.words.wrongType(path, wanted, given))
  if (schema.enum && isScalar(node) && !schema.enum.some((allowed) => String(allowed) === String(node.value))) return report(of.words.notAllowed(path, schema.enum.map(String).join(', ')))
  if (isMap(node)) {
    for (const { key, value } of node.items) {
      const name = isScalar(key) ? String(key.value) : ''
      const field = schema.properties?.[name] ?? (typeof schema.additionalProperties === 'object' ? schema.additionalProperties : undefined)
      check(value as Node | null, field, path === '' ? name : `${path}.${name}`, of)
    }
  }
  if (isSeq(node)) node.items.forEach((item, nth) => check(item as Node | null, schema.items, `${path}[${nth}]`, of))
}

/** Quantities and ports are numbers or text, and some fields take any value. */
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
