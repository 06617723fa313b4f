// Finds the position of the cursor in a manifest, and its schema in the OpenAPI v3 documents of a cluster.
import { clusterRoot, getJson } from '../api/client'
import { ReadCache } from '../api/readCache'

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

const documents = new ReadCache((path) => getJson<OpenApi>(path))

/** A cluster's OpenAPI document of a group version; undefined if the request fails. Documents are cached, and a failed request is repeated. */
export function readOpenApi(cluster: string, apiVersion: string): Promise<OpenApi | undefined> {
  const path = `${clusterRoot(cluster)}/openapi/v3/${apiVersion.includes('/') ? 'apis' : 'api'}/${apiVersion}`
  return documents.read(path).catch(() => undefined)
}

/** The schema of a kind in the OpenAPI document of its group version. */
export function findSchema(api: OpenApi, apiVersion: string, kind: string): Schema | undefined {
  const [group, version] = apiVersion.includes('/') ? apiVersion.split('/') : ['', apiVersion]
  return Object.values(api.components?.schemas ?? {}).find((schema) =>
    schema['x-kubernetes-group-version-kind']?.some((gvk) => gvk.group === group && gvk.version === version && gvk.kind === kind),
  )
}

/** The schema that a `$ref` points to. Description and default beside the reference take precedence. A schema without `$ref` is returned unchanged. */
export function resolveRef(api: OpenApi, schema: Schema | undefined): Schema | undefined {
  const ref = schema?.$ref ?? (schema?.allOf?.length === 1 ? schema.allOf[0]?.$ref : undefined)
  if (ref === undefined) return schema
  const target = api.components?.schemas?.[ref.replace('#/components/schemas/', '')]
  return target && { ...target, description: schema?.description ?? target.description, default: schema?.default ?? target.default } as Schema
}

/** The schema at a path of field names or map keys, and '[]' for the items of a list; undefined if there is none. */
export function schemaAt(api: OpenApi, root: Schema | undefined, path: string[]): Schema | undefined {
  let schema = resolveRef(api, root)
  for (const step of path) {
    const next: Schema | undefined =
      step === '[]' ? schema?.items : (schema?.properties?.[step] ?? (typeof schema?.additionalProperties === 'object' ? schema.additionalProperties : undefined))
    schema = resolveRef(api, next)
    if (!schema) return undefined
  }
  return schema
}

/** The position of the cursor in a manifest. */
export interface CursorContext {
  apiVersion: string | undefined
  kind: string | undefined
  /** Path of the mapping that contains the cursor: keys, and '[]' for a list item. */
  path: string[]
  /** Keys of the mapping in the lines above the cursor. */
  existingKeys: string[]
  /** The key whose value is being typed; undefined while a key is typed. */
  valueKey: string | undefined
  /** The part of the key or value before the cursor. */
  word: string
}

// Beginning of a line that may be incomplete: indentation, dashes of list items, and the key if its colon is typed.
const ENTRY = /^(\s*)((?:- +)*)(?:("[^"]*"|[\w./-]+):(?:\s|$))?/

/** Finds the context at an offset of the text. Uses only the indentation, because incomplete YAML cannot be parsed. */
export function cursorContextAt(text: string, offset: number): CursorContext {
  const begin = text.lastIndexOf('\n---', offset - 1)
  const end = text.indexOf('\n---', offset)
  const before = text.slice(begin < 0 ? 0 : begin + 4, offset).replace(/^[^\n]*\n/, (line) => (begin < 0 ? line : ''))
  const document = before + text.slice(offset, end < 0 ? undefined : end)
  const topLevelValue = (name: string) => new RegExp(`^${name}:[ \\t]+"?([^\\s"#]+)`, 'm').exec(document)?.[1]
  const lines = before.split('\n')
  const line = lines.pop() ?? ''
  const [, spaces = '', dashes = '', key] = ENTRY.exec(line) ?? []
  const content = line.slice(spaces.length + dashes.length)
  const value = key !== undefined ? /:\s+(\S*)$/.exec(content) : null
  const column = spaces.length + dashes.length
  const path = pathAt([...lines, line], lines.length, column)
  const existingKeys: string[] = []
  // Keys of the lines above in the same column, up to the parent key or the dash that starts the list item. There are none if the
  // cursor's line starts a list item.
  for (let nth = lines.length - 1; nth >= 0 && dashes === ''; nth--) {
    const above = lines[nth]!
    if (/^\s*(#|$)/.test(above)) continue
    const [, indent = '', items = '', name] = ENTRY.exec(above) ?? []
    const start = indent.length + items.length
    if (start === column && name !== undefined) existingKeys.push(unquote(name))
    if (start < column || (start === column && items !== '')) break
  }
  const word = value ? (value[1] ?? '') : (/[\w./-]*$/.exec(content)?.[0] ?? '')
  return { apiVersion: topLevelValue('apiVersion'), kind: topLevelValue('kind'), path, existingKeys, valueKey: value ? unquote(key!) : undefined, word }
}

// A complete line: indentation, dashes of list items, the key with or without quotes, and the value.
const LINE = /^(\s*)((?:-\s+)*)(?:("[^"]*"|'[^']*'|[^\s#'"-][^:#]*?):(?:\s+(.*))?$)?/

/** The path of the mapping that contains a column of a line: keys, and '[]' for a list item. */
function pathAt(lines: readonly string[], lineIndex: number, column: number): string[] {
  const path: string[] = []
  // Parent keys have less indentation; a list may start at the indentation of its key.
  let childColumn = column
  let isChildList = false
  for (let index = lineIndex; index >= 0 && (childColumn > 0 || isChildList); index--) {
    const match = LINE.exec(lines[index] ?? '')
    if (!match || /^\s*(#|$)/.test(lines[index] ?? '')) continue
    const [, spaces = '', dashes = '', key, value] = match
    const start = spaces.length + dashes.length
    const isParent = index < lineIndex && key !== undefined && !value && (start < childColumn || (isChildList && start === childColumn))
    if (isParent) {
      path.unshift(key.replace(/^(['"])(.*)\1$/, '$2'))
      childColumn = start
      isChildList = false
    }
    if (dashes !== '' && start === childColumn) {
      path.unshift('[]')
      childColumn = spaces.length
      isChildList = true
    }
  }
  return path
}

const unquote = (name: string) => name.replace(/^"(.*)"$/, '$1')
