// Help while a manifest is written: fields and values that its kind has, with what they mean.
import { autocompletion, completionKeymap, type CompletionContext, type CompletionResult } from '@codemirror/autocomplete'
import type { Extension } from '@codemirror/state'
import { hoverTooltip, keymap, type EditorView } from '@codemirror/view'
import { fieldsAt, pathAt, valuesAt, type Kind } from './schema'

/** Words beside the cursor, up to there and whole. */
const KEY = /^(\s*(?:-\s+)*)([\w.$/-]*)$/
const VALUE = /^(\s*(?:-\s+)*)([\w.$/-]+):\s+(\S*)$/

/** `kind` is asked at each moment: it comes behind the text. */
export function help(kind: () => Kind | undefined): Extension {
  return [autocompletion({ override: [(context) => complete(context, kind())], icons: false }), keymap.of(completionKeymap), hoverTooltip((view, place) => tell(view, place, kind()))]
}

function linesOf(view: { doc: { toString: () => string } }): string[] {
  return view.doc.toString().split('\n')
}

function complete({ state, pos, explicit }: CompletionContext, kind: Kind | undefined): CompletionResult | null {
  if (!kind) return null
  const line = state.doc.lineAt(pos)
  const before = line.text.slice(0, pos - line.from)
  const key = KEY.exec(before)
  if (key) {
    const [, lead = '', word = ''] = key
    if (word === '' && !explicit) return null
    const fields = fieldsAt(kind, pathAt(linesOf(state), line.number - 1, lead.length))
    const options = fields.map(({ name, type, description, required }) => ({
      label: name,
      detail: type,
      ...(description && { info: description }),
      boost: required ? 1 : 0,
      apply: `${name}:${/^(object|\[\])/.test(type) ? '' : ' '}`,
    }))
    return options.length === 0 ? null : { from: pos - word.length, options, validFor: /^[\w.$/-]*$/ }
  }
  const value = VALUE.exec(before)
  if (!value) return null
  const [, lead = '', name = '', word = ''] = value
  const options = valuesAt(kind, [...pathAt(linesOf(state), line.number - 1, lead.length), name]).map((label) => ({ label }))
  return options.length === 0 ? null : { from: pos - word.length, options }
}

/** What a field means, where the pointer rests on it. */
function tell(view: EditorView, place: number, kind: Kind | undefined) {
  const line = view.state.doc.lineAt(place)
  const found = /^(\s*(?:-\s+)*)([\w.$/-]+):/.exec(line.text)
  if (!kind || !found) return null
  const [, lead = '', name = ''] = found
  const from = line.from + lead.length
  if (place < from || place > from + name.length) return null
  const field = fieldsAt(kind, pathAt(linesOf(view.state), line.number - 1, lead.length)).find((one) => one.name === name)
  if (!field) return null
  return {
    pos: from,
    end: from + name.length,
    create: () => {
      const dom = document.createElement('div')
      dom.className = 'cm-meaning'
      dom.textContent = `${field.type}. ${field.description}`
      return { dom }
    },
  }
}
