// YAML in CodeMirror. It lives in a shadow root: there its styles are constructed sheets, which the content security policy allows; in
// the page itself they would be style elements, which it does not.
import { autocompletion, closeBrackets, closeBracketsKeymap, completionKeymap, type CompletionContext, type CompletionResult } from '@codemirror/autocomplete'
import { defaultKeymap, history, historyKeymap } from '@codemirror/commands'
import { yaml } from '@codemirror/lang-yaml'
import { bracketMatching, foldGutter, foldKeymap, HighlightStyle, indentOnInput, syntaxHighlighting } from '@codemirror/language'
import { lintGutter, lintKeymap, setDiagnostics } from '@codemirror/lint'
import { unifiedMergeView } from '@codemirror/merge'
import { highlightSelectionMatches, searchKeymap } from '@codemirror/search'
import { Annotation, Compartment, EditorState, type Extension } from '@codemirror/state'
import { drawSelection, EditorView, highlightActiveLine, highlightActiveLineGutter, keymap, lineNumbers } from '@codemirror/view'
import { tags } from '@lezer/highlight'
import { useEffect, useRef } from 'react'
import { remarks } from './lint'
import type { Mark } from './manifest'
import { openApiOf, placeAt, resolve, schemaAt, schemaOf, type Schema } from './schema'

interface EditorProps {
  label: string
  value: string
  /** Absent: it is only read. */
  onChange?: (value: string) => void
  /** Shows what differs from this. */
  original?: string | undefined
  problems?: Mark[]
  /** Puts the cursor there; another object of the same place does it again. */
  goTo?: { at: number } | undefined
  /** Its height at most, in lines of the screen. */
  height?: string
}

const theme = EditorView.theme({
  '&': { color: 'var(--text)', backgroundColor: 'var(--raised)', fontSize: '12.5px' },
  '&.cm-focused': { outline: '2px solid var(--accent)', outlineOffset: '-2px' },
  '.cm-scroller': { fontFamily: 'ui-monospace, monospace', lineHeight: '1.5' },
  '.cm-content': { caretColor: 'var(--text)' },
  '.cm-cursor': { borderLeftColor: 'var(--text)' },
  '.cm-gutters': { backgroundColor: 'var(--bg)', color: 'var(--muted)', borderRight: '1px solid var(--line)' },
  '.cm-activeLine, .cm-activeLineGutter': { backgroundColor: 'color-mix(in srgb, var(--chosen) 35%, transparent)' },
  '.cm-activeLineGutter': { color: 'var(--text)' },
  '&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground': { background: 'var(--chosen) !important' },
  '.cm-selectionMatch': { backgroundColor: 'var(--chosen)' },
  '.cm-searchMatch': { backgroundColor: 'light-dark(#fff1b8, #4d3d00)' },
  '.cm-panels, .cm-tooltip': { backgroundColor: 'var(--raised)', color: 'var(--text)', border: '1px solid var(--line)' },
  '.cm-panels input, .cm-panels button': { color: 'var(--text)', background: 'var(--bg)', border: '1px solid var(--line)', borderRadius: '4px' },
  '.cm-tooltip-autocomplete > ul > li[aria-selected]': { backgroundColor: 'var(--chosen)', color: 'var(--text)' },
  '.cm-completionDetail': { color: 'var(--muted)', fontStyle: 'normal' },
  '.cm-completionInfo': { maxWidth: '420px', whiteSpace: 'pre-wrap' },
  '.cm-foldPlaceholder': { backgroundColor: 'var(--chosen)', color: 'var(--text)', border: 'none' },
  '.cm-changedLine, .cm-inlineChangedLine': { backgroundColor: 'light-dark(#e3f5e6, #12301a) !important' },
  '.cm-changedText': { background: 'light-dark(#bfe8c7, #1d5a2c) !important' },
  '.cm-deletedChunk': { backgroundColor: 'light-dark(#fdeae8, #3a1715) !important' },
  '.cm-deletedChunk .cm-deletedText': { background: 'light-dark(#f6c7c3, #6b2520) !important' },
  '.cm-collapsedLines': { color: 'var(--muted)', background: 'var(--bg)' },
  '.cm-collapsedLines:before, .cm-collapsedLines:after': { content: '"⋯"' },
})

const colours = HighlightStyle.define([
  { tag: [tags.propertyName, tags.definition(tags.propertyName)], color: 'var(--accent)' },
  { tag: [tags.string, tags.content, tags.special(tags.string)], color: 'var(--text)' },
  { tag: [tags.number, tags.bool, tags.null, tags.atom], color: 'var(--value)' },
  { tag: [tags.comment, tags.meta, tags.separator], color: 'var(--muted)' },
  { tag: [tags.keyword, tags.labelName, tags.typeName], color: 'var(--pattern)' },
])

/** Words of a schema at the cursor; the server that has it is asked once for each group. */
async function complete(context: CompletionContext): Promise<CompletionResult | null> {
  const { path, taken, value, word, apiVersion, kind } = placeAt(context.state.doc.toString(), context.pos)
  if (!apiVersion || !kind || (word === '' && !context.explicit)) return null
  const api = await openApiOf(apiVersion)
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

/** Changes that the page made itself. */
const ours = Annotation.define<boolean>()

export function Editor({ label, value, onChange, original, problems, goTo, height = '60vh' }: EditorProps) {
  const host = useRef<HTMLDivElement>(null)
  const view = useRef<EditorView>(undefined)
  const changed = useRef(onChange)
  const merging = useRef(new Compartment())
  useEffect(() => {
    changed.current = onChange
  })

  const writes = onChange !== undefined
  useEffect(() => {
    const place = host.current
    if (!place) return
    const root = place.shadowRoot ?? place.attachShadow({ mode: 'open' })
    const editing: Extension = writes
      ? [history(), indentOnInput(), closeBrackets(), autocompletion({ override: [complete] }), lintGutter(), highlightActiveLine(), highlightActiveLineGutter()]
      : EditorState.readOnly.of(true)
    const made = new EditorView({
      root,
      parent: root,
      state: EditorState.create({
        doc: value,
        extensions: [
          lineNumbers(),
          foldGutter(),
          drawSelection(),
          bracketMatching(),
          highlightSelectionMatches(),
          yaml(),
          syntaxHighlighting(colours),
          theme,
          remarks,
          EditorView.theme({ '.cm-scroller': { maxHeight: height, overflow: 'auto' } }),
          EditorView.lineWrapping,
          EditorView.contentAttributes.of({ 'aria-label': label, tabindex: '0' }),
          // Tab leads on through the page, as everywhere.
          keymap.of([...closeBracketsKeymap, ...defaultKeymap, ...searchKeymap, ...historyKeymap, ...foldKeymap, ...completionKeymap, ...lintKeymap]),
          editing,
          merging.current.of([]),
          EditorView.updateListener.of((update) => {
            if (update.docChanged && !update.transactions.some((one) => one.annotation(ours))) changed.current?.(update.state.doc.toString())
          }),
        ],
      }),
    })
    view.current = made
    return () => {
      made.destroy()
      view.current = undefined
    }
    // Its text is kept up below.
  }, [label, writes, height])

  useEffect(() => {
    const { current } = view
    if (current && current.state.doc.toString() !== value) {
      current.dispatch({ changes: { from: 0, to: current.state.doc.length, insert: value }, annotations: ours.of(true) })
    }
  }, [value, label, writes, height])

  useEffect(() => {
    const shown = original === undefined ? [] : unifiedMergeView({ original, mergeControls: false, collapseUnchanged: { margin: 3, minSize: 6 } })
    view.current?.dispatch({ effects: merging.current.reconfigure(shown) })
  }, [original, label, writes, height])

  useEffect(() => {
    const { current } = view
    if (!current || problems === undefined) return
    const end = current.state.doc.length
    const shown = problems.map(({ from, to, message }) => ({ from: Math.min(from, end), to: Math.min(Math.max(to, from), end), severity: 'error' as const, message }))
    current.dispatch(setDiagnostics(current.state, shown))
  }, [problems, label, writes, height])

  useEffect(() => {
    const { current } = view
    if (!current || !goTo) return
    current.dispatch({ selection: { anchor: Math.min(goTo.at, current.state.doc.length) }, scrollIntoView: true })
    current.focus()
  }, [goTo])

  return <div className="editor" ref={host} />
}
