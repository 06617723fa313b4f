// Completion and documentation in the manifest editor, from the kind's schema.
import { autocompletion, completionKeymap, type CompletionContext, type CompletionResult } from '@codemirror/autocomplete'
import type { Extension } from '@codemirror/state'
import { hoverTooltip, keymap, type EditorView } from '@codemirror/view'
import { openApiOf, placeAt, resolve, schemaAt, schemaOf, type Schema } from './schema'

/** `cluster`: the source of the schema. */
export function help(cluster: string): Extension {
  return [
    autocompletion({ override: [(context) => complete(context, cluster)], icons: false }),
    keymap.of(completionKeymap),
    hoverTooltip((view, place) => tell(view, place, cluster)),
  ]
}

/** Completions at the cursor from a schema that is requested once per group. */
async function complete(context: CompletionContext, cluster: string): Promise<CompletionResult | null> {
  const { path, taken, value, word, apiVersion, kind } = placeAt(context.state.doc.toString(), context.pos)
  if (!apiVersion || !kind || (word === '' && !context.explicit)) return null
  const api = await openApiOf(cluster, apiVersion)
  const at = api && schemaAt(api, schemaOf(api, apiVersion, kind), value === undefined ? path : [...path, value])
  if (!api || !at || context.aborted) return null
  const from = context.pos - word.length
  if (value !== undefined) {
    const values = at.enum ?? (at.type === 'boolean' ? [true, false] : [])
    return values.length === 0 ? null : { from, options: values.map((one) => ({ label: String(one), type: 'enum' })), validFor: /^[\w.-]*$/ }
  }
  const required = new Set(at.required)
  const options = Object.entries(at.properties ?? {})
    .filter(([name]) => !taken.includes(name))
    .map(([name, schema]) => {
      const whole = resolve(api, schema)
      const info = schema.description ?? whole?.description
      const nested = whole?.type === 'object' || whole?.properties !== undefined || whole?.type === 'array'
      return {
        label: name,
        type: 'property',
        detail: `${typeOf(whole)}${required.has(name) ? ' *' : ''}`,
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
async function tell(view: EditorView, place: number, cluster: string) {
  const line = view.state.doc.lineAt(place)
  const [, lead = '', name] = /^(\s*(?:-\s+)*)([\w.$/-]+):/.exec(line.text) ?? []
  const from = line.from + lead.length
  if (name === undefined || place < from || place > from + name.length) return null
  const { path, apiVersion, kind } = placeAt(view.state.doc.toString(), from)
  if (!apiVersion || !kind) return null
  const api = await openApiOf(cluster, apiVersion)
  const field = api && schemaAt(api, schemaOf(api, apiVersion, kind), [...path, name])
  if (!field) return null
  const dom = document.createElement('div')
  dom.className = 'cm-meaning'
  dom.textContent = `${typeOf(field)}. ${field.description ?? ''}`
  return { pos: from, end: from + name.length, create: () => ({ dom }) }
}
