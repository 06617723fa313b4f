// What may be written in a manifest, as its cluster describes its kinds (OpenAPI v3).
import { clusterRoot, getJson, type ObjectRef } from '../../api/client'

interface Schema {
  $ref?: string
  allOf?: Schema[]
  type?: string
  format?: string
  description?: string
  properties?: Record<string, Schema>
  additionalProperties?: Schema | boolean
  items?: Schema
  enum?: unknown[]
  required?: string[]
  'x-kubernetes-group-version-kind'?: { group: string; version: string; kind: string }[]
}

export interface Document {
  components?: { schemas?: Record<string, Schema> }
}

export interface Field {
  name: string
  /** `string`, `object`, `[]string`. */
  type: string
  description: string
  required: boolean
}

/** A kind's schema, with the document that its references lead into. */
export interface Kind {
  document: Document
  schema: Schema
}

/** The description of a kind; undefined where the cluster has none of it. */
export async function readKind({ cluster, apiVersion }: ObjectRef, kind: string, signal?: AbortSignal): Promise<Kind | undefined> {
  const group = apiVersion.includes('/') ? `apis/${apiVersion}` : `api/${apiVersion}`
  return kindIn(await getJson<Document>(`${clusterRoot(cluster)}/openapi/v3/${group}`, signal), apiVersion, kind)
}

export function kindIn(document: Document, apiVersion: string, kind: string): Kind | undefined {
  const of = ({ group, version, kind: other }: { group: string; version: string; kind: string }) =>
    other === kind && (group === '' ? version : `${group}/${version}`) === apiVersion
  const schema = Object.values(document.components?.schemas ?? {}).find((one) => one['x-kubernetes-group-version-kind']?.some(of))
  return schema && { document, schema }
}

/** What a schema refers to, with the description of the reference where it has one of its own. */
function resolve(document: Document, schema: Schema | undefined): Schema | undefined {
  let { description } = schema ?? {}
  for (let step = 0; schema && step < 10; step++) {
    const next: Schema | undefined = schema.$ref ? document.components?.schemas?.[schema.$ref.split('/').pop() ?? ''] : schema.allOf?.length === 1 ? schema.allOf[0] : undefined
    if (!next) break
    schema = next
    description ??= schema.description
  }
  return schema && description !== undefined ? { ...schema, description } : schema
}

function at({ document, schema }: Kind, path: readonly string[]): Schema | undefined {
  return path.reduce<Schema | undefined>((within, field) => {
    if (!within) return undefined
    const more = typeof within.additionalProperties === 'object' ? within.additionalProperties : undefined
    return resolve(document, field === '[]' ? within.items : (within.properties?.[field] ?? more))
  }, resolve(document, schema))
}

const typeOf = (document: Document, schema: Schema | undefined): string => {
  const known = resolve(document, schema)
  return known?.type === 'array' ? `[]${typeOf(document, known.items)}` : (known?.type ?? 'any')
}

/** The fields of what is at a path. */
export function fieldsAt(kind: Kind, path: readonly string[]): Field[] {
  const within = at(kind, path)
  return Object.entries(within?.properties ?? {}).map(([name, schema]) => ({
    name,
    type: typeOf(kind.document, schema),
    description: resolve(kind.document, schema)?.description ?? '',
    required: within?.required?.includes(name) ?? false,
  }))
}

/** Values that a field may have, where they are listed. */
export function valuesAt(kind: Kind, path: readonly string[]): string[] {
  const field = at(kind, path)
  return field?.type === 'boolean' ? ['true', 'false'] : (field?.enum ?? []).map(String)
}

const LINE = /^(\s*)((?:-\s+)*)(?:("[^"]*"|'[^']*'|[^\s#'"-][^:#]*?):(?:\s+(.*))?$)?/

/** Where in an object something is that begins at a column of a line: fields, and `[]` for an element of a list. */
export function pathAt(lines: readonly string[], nth: number, column: number): string[] {
  const path: string[] = []
  // Keys that lead here begin left of this; a list may begin right below its key.
  let below = column
  let list = false
  for (let at = nth; at >= 0 && (below > 0 || list); at--) {
    const found = LINE.exec(lines[at] ?? '')
    if (!found || /^\s*(#|$)/.test(lines[at] ?? '')) continue
    const [, spaces = '', dashes = '', key, value] = found
    const start = spaces.length + dashes.length
    const leads = at < nth && key !== undefined && !value && (start < below || (list && start === below))
    if (leads) {
      path.unshift(key.replace(/^(['"])(.*)\1$/, '$2'))
      below = start
      list = false
    }
    if (dashes !== '' && start === below) {
      path.unshift('[]')
      below = spaces.length
      list = true
    }
  }
  return path
}
