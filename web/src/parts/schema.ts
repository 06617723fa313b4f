// Finds the schema at a position of a manifest in a cluster's OpenAPI v3 documents.
import { clusterRoot, getJson } from '../api/client'

export interface Schema {
  $ref?: string
  allOf?: Schema[]
  type?: string
  description?: string
  properties?: Record<string, Schema>
  items?: Schema
  additionalProperties?: Schema | boolean
  enum?: unknown[]
  required?: string[]
  default?: unknown
  format?: string
  'x-kubernetes-int-or-string'?: boolean
  'x-kubernetes-preserve-unknown-fields'?: boolean
  'x-kubernetes-group-version-kind'?: { group: string; version: string; kind: string }[]
}

export interface OpenApi {
  components?: { schemas?: Record<string, Schema> }
}

const documents = new Map<string, Promise<OpenApi | undefined>>()

/** A cluster's OpenAPI document of a group version; undefined if the request fails. Documents are cached. */
export function readOpenApi(cluster: string, apiVersion: string): Promise<OpenApi | undefined> {
  const path = `${clusterRoot(cluster)}/openapi/v3/${apiVersion.includes('/') ? 'apis' : 'api'}/${apiVersion}`
  const cached = documents.get(path)
  if (cached) return cached
  // A failed request is not cached, so the next call repeats it.
  const request = getJson<OpenApi>(path).catch(() => {
    documents.delete(path)
    return undefined
  })
  documents.set(path, request)
  return request
}

/** The schema of a kind. */
export function findSchema(api: OpenApi, apiVersion: string, kind: string): Schema | undefined {
  const [group, version] = apiVersion.includes('/') ? apiVersion.split('/') : ['', apiVersion]
  return Object.values(api.components?.schemas ?? {}).find((schema) =>
    schema['x-kubernetes-group-version-kind']?.some((one) => one.group === group && one.version === version && one.kind === kind),
  )
}

/** The schema that a `$ref` points to, with description and default of the reference; a schema without one is returned unchanged. */
export function resolveRef(api: OpenApi, schema: Schema | undefined): Schema | undefined {
  const referred = schema?.$ref ?? (schema?.allOf?.length === 1 ? schema.allOf[0]?.$ref : undefined)
  if (referred === undefined) return schema
  const target = api.components?.schemas?.[referred.replace('#/components/schemas/', '')]
  return target && { ...target, description: schema?.description ?? target.description, default: schema?.default ?? target.default } as Schema
}

/** The schema at a path; '[]' steps into list items. */
export function schemaAt(api: OpenApi, root: Schema | undefined, path: string[]): Schema | undefined {
  let at = resolveRef(api, root)
  for (const step of path) {
    const next: Schema | undefined =
      step === '[]' ? at?.items : (at?.properties?.[step] ?? (typeof at?.additionalProperties === 'object' ? at.additionalProperties : undefined))
    at = resolveRef(api, next)
    if (!at) return undefined
  }
  return at
}

export interface CursorContext {
  apiVersion: string | undefined
  kind: string | undefined
  /** The mapping at the cursor. */
  path: string[]
  /** Keys that the mapping already has. */
  existingKeys: string[]
  /** The key whose value is being typed. */
  valueKey: string | undefined
  /** The part of the word that is already typed. */
  word: string
}

const ENTRY = /^(\s*)((?:- +)*)(?:("[^"]*"|[\w./-]+):(?:\s|$))?/

/** The context of the cursor, by indentation alone: incomplete YAML cannot be parsed. */
export function cursorContextAt(text: string, at: number): CursorContext {
  const begin = text.lastIndexOf('\n---', at - 1)
  const ends = text.indexOf('\n---', at)
  const before = text.slice(begin < 0 ? 0 : begin + 4, at).replace(/^[^\n]*\n/, (line) => (begin < 0 ? line : ''))
  const document = before + text.slice(at, ends < 0 ? undefined : ends)
  const top = (name: string) => new RegExp(`^${name}:[ \\t]+"?([^\\s"#]+)`, 'm').exec(document)?.[1]
  const lines = before.split('\n')
  const line = lines.pop() ?? ''
  const [, spaces = '', dashes = '', key] = ENTRY.exec(line) ?? []
  const after = line.slice(spaces.length + dashes.length)
  const value = key !== undefined ? /:\s+(\S*)$/.exec(after) : null
  const column = spaces.length + dashes.length
  const path = pathAt([...lines, line], lines.length, column)
  const existingKeys: string[] = []
  // Sibling keys: lines above with the same indentation, up to the parent. A dash on its own line starts an item.
  for (let nth = lines.length - 1; nth >= 0 && dashes === ''; nth--) {
    const above = lines[nth]!
    if (/^\s*(#|$)/.test(above)) continue
    const [, indent = '', items = '', name] = ENTRY.exec(above) ?? []
    const start = indent.length + items.length
    if (start === column && name !== undefined) existingKeys.push(unquoted(name))
    if (start < column || (start === column && items !== '')) break
  }
  const word = value ? (value[1] ?? '') : (/[\w./-]*$/.exec(after)?.[0] ?? '')
  return { apiVersion: top('apiVersion'), kind: top('kind'), path, existingKeys, valueKey: value ? unquoted(key!) : undefined, word }
}

const LINE = /^(\s*)((?:-\s+)*)(?:("[^"]*"|'[^']*'|[^\s#'"-][^:#]*?):(?:\s+(.*))?$)?/

/** The path of a column of a line: fields, and `[]` for a list item. */
function pathAt(lines: readonly string[], nth: number, column: number): string[] {
  const path: string[] = []
  // Parent keys have less indentation; a list may start at the indentation of its key.
  let below = column
  let list = false
  for (let at = nth; at >= 0 && (below > 0 || list); at--) {
    const match = LINE.exec(lines[at] ?? '')
    if (!match || /^\s*(#|$)/.test(lines[at] ?? '')) continue
    const [, spaces = '', dashes = '', key, value] = match
    const start = spaces.length + dashes.length
    const isParent = at < nth && key !== undefined && !value && (start < below || (list && start === below))
    if (isParent) {
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

const unquoted = (name: string) => name.replace(/^"(.*)"$/, '$1')
