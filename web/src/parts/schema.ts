// Completions at a position of a manifest, from a cluster's OpenAPI v3.
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

const known = new Map<string, Promise<OpenApi | undefined>>()

/** A cluster's document of a group version; undefined if there is none. */
export function openApiOf(cluster: string, apiVersion: string): Promise<OpenApi | undefined> {
  const path = `${clusterRoot(cluster)}/openapi/v3/${apiVersion.includes('/') ? 'apis' : 'api'}/${apiVersion}`
  const asked = known.get(path)
  if (asked) return asked
  // A failed request gives no completions and is repeated the next time.
  const asking = getJson<OpenApi>(path).catch(() => {
    known.delete(path)
    return undefined
  })
  known.set(path, asking)
  return asking
}

export function schemaOf(api: OpenApi, apiVersion: string, kind: string): Schema | undefined {
  const [group, version] = apiVersion.includes('/') ? apiVersion.split('/') : ['', apiVersion]
  return Object.values(api.components?.schemas ?? {}).find((schema) =>
    schema['x-kubernetes-group-version-kind']?.some((one) => one.group === group && one.version === version && one.kind === kind),
  )
}

export function resolve(api: OpenApi, schema: Schema | undefined): Schema | undefined {
  const referred = schema?.$ref ?? (schema?.allOf?.length === 1 ? schema.allOf[0]?.$ref : undefined)
  if (referred === undefined) return schema
  const found = api.components?.schemas?.[referred.replace('#/components/schemas/', '')]
  return found && { ...found, description: schema?.description ?? found.description, default: schema?.default ?? found.default } as Schema
}

/** The schema at a path; '[]' steps into list items. */
export function schemaAt(api: OpenApi, root: Schema | undefined, path: string[]): Schema | undefined {
  let at = resolve(api, root)
  for (const step of path) {
    const next: Schema | undefined =
      step === '[]' ? at?.items : (at?.properties?.[step] ?? (typeof at?.additionalProperties === 'object' ? at.additionalProperties : undefined))
    at = resolve(api, next)
    if (!at) return undefined
  }
  return at
}

export interface Place {
  apiVersion: string | undefined
  kind: string | undefined
  /** The mapping at the cursor. */
  path: string[]
  /** Its existing keys. */
  taken: string[]
  /** The key whose value is being typed. */
  value: string | undefined
  /** The part of the word that is already typed. */
  word: string
}

const ENTRY = /^(\s*)((?:- +)*)(?:("[^"]*"|[\w./-]+):(?:\s|$))?/

/** The context of the cursor, by indentation alone: incomplete YAML cannot be parsed. */
export function placeAt(text: string, at: number): Place {
  const begin = text.lastIndexOf('\n---', at - 1)
  const ends = text.indexOf('\n---', at)
  const before = text.slice(begin < 0 ? 0 : begin + 4, at).replace(/^[^\n]*\n/, (line) => (begin < 0 ? line : ''))
  const whole = before + text.slice(at, ends < 0 ? undefined : ends)
  const top = (name: string) => new RegExp(`^${name}:[ \\t]+"?([^\\s"#]+)`, 'm').exec(whole)?.[1]
  const lines = before.split('\n')
  const line = lines.pop() ?? ''
  const [, spaces = '', dashes = '', key] = ENTRY.exec(line) ?? []
  const after = line.slice(spaces.length + dashes.length)
  const value = key !== undefined ? /:\s+(\S*)$/.exec(after) : null
  const column = spaces.length + dashes.length
  const path = pathAt([...lines, line], lines.length, column)
  const taken: string[] = []
  // Sibling keys: lines above with the same indentation, up to the parent. A dash on its own line starts an item.
  for (let nth = lines.length - 1; nth >= 0 && dashes === ''; nth--) {
    const above = lines[nth]!
    if (/^\s*(#|$)/.test(above)) continue
    const [, own = '', items = '', name] = ENTRY.exec(above) ?? []
    const start = own.length + items.length
    if (start === column && name !== undefined) taken.push(unquoted(name))
    if (start < column || (start === column && items !== '')) break
  }
  const word = value ? (value[1] ?? '') : (/[\w./-]*$/.exec(after)?.[0] ?? '')
  return { apiVersion: top('apiVersion'), kind: top('kind'), path, taken, value: value ? unquoted(key!) : undefined, word }
}

const LINE = /^(\s*)((?:-\s+)*)(?:("[^"]*"|'[^']*'|[^\s#'"-][^:#]*?):(?:\s+(.*))?$)?/

/** The path of a column of a line: fields, and `[]` for a list item. */
function pathAt(lines: readonly string[], nth: number, column: number): string[] {
  const path: string[] = []
  // Parent keys have less indentation; a list may start at the indentation of its key.
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

const unquoted = (name: string) => name.replace(/^"(.*)"$/, '$1')
