// Completion and documentation in the manifest editor, from the kind's schema.
import { autocompletion, completionKeymap, type CompletionContext, type CompletionResult } from '@codemirror/autocomplete'
import type { Extension } from '@codemirror/state'
import { hoverTooltip, keymap, type EditorView } from '@codemirror/view'
import { readOpenApi, cursorContextAt, resolveRef, schemaAt, findSchema, type Schema } from './schema'

/** Editor extension for completion and documentation, with the schema of a cluster. */
export function schemaHelp(cluster: string): Extension {
  return [
    autocompletion({ override: [(context) => complete(context, cluster)], icons: false }),
    keymap.of(completionKeymap),
    hoverTooltip((view, position) => fieldDocumentation(view, position, cluster)),
  ]
}

/** Completions at the cursor. The schema of a group version is requested once. */
async function complete(context: CompletionContext, cluster: string): Promise<CompletionResult | null> {
  const { path, existingKeys, valueKey, word, apiVersion, kind } = cursorContextAt(context.state.doc.toString(), context.pos)
  if (!apiVersion || !kind || (word === '' && !context.explicit)) return null
  const api = await readOpenApi(cluster, apiVersion)
  const target = api && schemaAt(api, findSchema(api, apiVersion, kind), valueKey === undefined ? path : [...path, valueKey])
  if (!api || !target || context.aborted) return null
  const from = context.pos - word.length
  if (valueKey !== undefined) {
    const values = target.enum ?? (target.type === 'boolean' ? [true, false] : [])
    return values.length === 0 ? null : { from, options: values.map((item) => ({ label: String(item), type: 'enum' })), validFor: /^[\w.-]*$/ }
  }
  const required = new Set(target.required)
  const options = Object.entries(target.properties ?? {})
    .filter(([name]) => !existingKeys.includes(name))
    .map(([name, schema]) => {
      const resolved = resolveRef(api, schema)
      const info = schema.description ?? resolved?.description
      const nested = resolved?.type === 'object' || resolved?.properties !== undefined || resolved?.type === 'array'
      return {
        label: name,
        type: 'property',
        detail: `${typeOf(resolved)}${required.has(name) ? ' *' : ''}`,
        ...(info && { info }),
        apply: nested ? `${name}:` : `${name}: `,
        boost: required.has(name) ? 10 : 0,
      }
    })
  return options.length === 0 ? null : { from, options, validFor: /^[\w-]*$/ }
}

function typeOf(schema: Schema | undefined): string {
  if (schema?.enum) return schema.enum.map(String).join(' | ')
  return schema?.type ?? (schema?.properties ? 'object' : '')
}

/** Documentation of the field under the pointer. */
async function fieldDocumentation(view: EditorView, position: number, cluster: string) {
  const line = view.state.doc.lineAt(position)
  const [, lead = '', name] = /^(\s*(?:-\s+)*)([\w.$/-]+):/.exec(line.text) ?? []
  const from = line.from + lead.length
  if (name === undefined || position < from || position > from + name.length) return null
  const { path, apiVersion, kind } = cursorContextAt(view.state.doc.toString(), from)
  if (!apiVersion || !kind) return null
  const api = await readOpenApi(cluster, apiVersion)
  const field = api && schemaAt(api, findSchema(api, apiVersion, kind), [...path, name])
  if (!field) return null
  const dom = document.createElement('div')
  dom.className = 'cm-meaning'
  dom.textContent = `${typeOf(field)}. ${field.description ?? ''}`
  return { pos: from, end: from + name.length, create: () => ({ dom }) }
}
