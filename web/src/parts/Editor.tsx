// YAML editor (CodeMirror). It is in a shadow root, where CodeMirror uses constructed style sheets, which the content security policy allows.
// In the page itself it would use style elements, which the policy forbids.
import { closeBrackets, closeBracketsKeymap } from '@codemirror/autocomplete'
import { defaultKeymap, history, historyKeymap } from '@codemirror/commands'
import { yaml } from '@codemirror/lang-yaml'
import { bracketMatching, codeFolding, foldGutter, foldKeymap, HighlightStyle, indentOnInput, syntaxHighlighting } from '@codemirror/language'
import { linter, lintGutter, lintKeymap, setDiagnostics } from '@codemirror/lint'
import { unifiedMergeView } from '@codemirror/merge'
import { findNext, getSearchQuery, highlightSelectionMatches, openSearchPanel, search, searchKeymap, SearchQuery, searchPanelOpen, setSearchQuery } from '@codemirror/search'
import { Annotation, Compartment, EditorState, type Extension } from '@codemirror/state'
import { drawSelection, EditorView, highlightActiveLine, highlightActiveLineGutter, highlightSpecialChars, keymap, lineNumbers } from '@codemirror/view'
import { tags } from '@lezer/highlight'
import { useEffect, useRef } from 'react'
import { CONTROL_PLANE } from '../api/client'
import { useTextOf } from '../text'
import { queryText } from '../text/query'
import { schemaHelp } from './help'
import { lintTheme } from './lint'
import { readSchemas, validate, type ValidationMessages } from './validate'
import { parseYaml, type Problem } from './yaml'
import './editor.css'

interface EditorProps {
  label: string
  value: string
  /** Absent: read-only. */
  onChange?: (value: string) => void
  /** Shows the differences from this text. */
  original?: string | undefined
  /** External errors; without them the editor reports invalid YAML. */
  problems?: Problem[]
  /** Moves the cursor to a character index; a new object with the same index moves it again. */
  goTo?: { at: number } | undefined
  /** Maximum height as a CSS length. */
  height?: string
  /** The cluster whose schema is used for completion. */
  cluster?: string
  /** The search text in the editor. */
  find?: string | undefined
  onFind?: (text: string) => void
}

const theme = EditorView.theme({
  '&': { color: 'var(--text)', backgroundColor: 'var(--raised)', fontSize: 'var(--type-13)' },
  '&.cm-focused': { outline: '2px solid var(--accent)', outlineOffset: '-2px' },
  '.cm-scroller': { fontFamily: 'var(--mono)', lineHeight: '1.5' },
  '.cm-content': { caretColor: 'var(--text)' },
  '.cm-cursor': { borderLeftColor: 'var(--text)' },
  '.cm-gutters': { backgroundColor: 'var(--bg)', color: 'var(--muted)', borderRight: '1px solid var(--line)' },
  '.cm-activeLine, .cm-activeLineGutter': { backgroundColor: 'color-mix(in srgb, var(--chosen) 35%, transparent)' },
  '.cm-activeLineGutter': { color: 'var(--text)' },
  '&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground': { background: 'var(--chosen) !important' },
  '.cm-selectionMatch': { backgroundColor: 'var(--chosen)' },
  '.cm-searchMatch': { backgroundColor: 'var(--match)' },
  '.cm-panel.cm-search :is(input, button, label)': { fontSize: 'var(--type-13)' },
  '.cm-panel.cm-search :focus-visible': { outline: '2px solid var(--accent)' },
  '.cm-textfield, .cm-button': { backgroundImage: 'none' },
  '.cm-searchMatch-selected': { outline: '2px solid var(--pattern)' },
  '.cm-meaning': { maxWidth: '460px', padding: '4px 8px', font: 'var(--type-13)/1.4 system-ui, sans-serif' },
  'del.cm-deletedText': { background: 'var(--removed-words)' },
  '.cm-panels, .cm-tooltip': { backgroundColor: 'var(--raised)', color: 'var(--text)', border: '1px solid var(--line)' },
  '.cm-panels input, .cm-panels button': { color: 'var(--text)', background: 'var(--bg)', border: '1px solid var(--line)', borderRadius: '4px' },
  '.cm-tooltip-autocomplete > ul > li[aria-selected]': { backgroundColor: 'var(--chosen)', color: 'var(--text)' },
  '.cm-completionDetail': { color: 'var(--muted)', fontStyle: 'normal' },
  '.cm-completionInfo': { maxWidth: '420px', whiteSpace: 'pre-wrap' },
  '.cm-foldPlaceholder': { backgroundColor: 'var(--chosen)', color: 'var(--text)', border: 'none' },
  '.cm-changedLine, .cm-inlineChangedLine': { backgroundColor: 'var(--added) !important' },
  '.cm-changedText': { background: 'var(--added-words) !important' },
  '.cm-deletedChunk': { backgroundColor: 'var(--removed) !important' },
  '.cm-deletedChunk .cm-deletedText': { background: 'var(--removed-words) !important' },
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

/** Reports invalid YAML and, where the cluster has a schema, values of another type than their field. */
const manifestLinter = (cluster: string, messages: ValidationMessages) =>
  linter(
    async (view) => {
      const text = view.state.doc.toString()
      const { problems } = parseYaml(text)
      const allProblems = problems.length > 0 ? problems : validate(text, await readSchemas(cluster, text), messages)
      return allProblems.map((problem) => ({ ...problem, severity: 'error' as const }))
    },
    { delay: 300 },
  )

/** Annotates changes made by the page, which are not reported as edits. */
const changedByPage = Annotation.define<boolean>()

export function Editor({ label, value, onChange, original, problems, goTo, height = '60vh', cluster = CONTROL_PLANE, find, onFind }: EditorProps) {
  const t = useTextOf(queryText)
  const host = useRef<HTMLDivElement>(null)
  const view = useRef<EditorView>(undefined)
  const latest = useRef({ value, find, onChange, onFind })
  const mergeCompartment = useRef(new Compartment())
  useEffect(() => {
    latest.current = { value, find, onChange, onFind }
  })

  const isEditable = onChange !== undefined
  const lintsYaml = isEditable && problems === undefined
  useEffect(() => {
    const hostElement = host.current
    if (!hostElement) return
    const root = hostElement.shadowRoot ?? hostElement.attachShadow({ mode: 'open' })
    const editing: Extension = isEditable
      ? [history(), indentOnInput(), closeBrackets(), schemaHelp(cluster), lintGutter(), highlightActiveLine(), highlightActiveLineGutter(), lintsYaml ? manifestLinter(cluster, t) : []]
      : [EditorState.readOnly.of(true), EditorView.editable.of(false)]
    const editor = new EditorView({
      root,
      parent: root,
      state: EditorState.create({
        doc: latest.current.value,
        extensions: [
          lineNumbers(),
          codeFolding(),
          foldGutter(),
          highlightSpecialChars(),
          drawSelection(),
          search({ top: true }),
          EditorState.phrases.of(t.editorPhrases),
          bracketMatching(),
          highlightSelectionMatches(),
          yaml(),
          syntaxHighlighting(colours),
          theme,
          lintTheme,
          EditorView.theme({ '.cm-scroller': { maxHeight: height, overflow: 'auto' } }),
          EditorView.lineWrapping,
          EditorView.contentAttributes.of({ 'aria-label': label, tabindex: '0' }),
          // Tab is not bound, so that it moves the focus as in the rest of the page.
          keymap.of([...closeBracketsKeymap, ...defaultKeymap, ...searchKeymap, ...historyKeymap, ...foldKeymap, ...lintKeymap]),
          editing,
          mergeCompartment.current.of([]),
          EditorView.updateListener.of((update) => {
            if (update.docChanged && !update.transactions.some((transaction) => transaction.annotation(changedByPage))) latest.current.onChange?.(update.state.doc.toString())
            const query = getSearchQuery(update.state)
            const open = searchPanelOpen(update.state)
            if (open !== searchPanelOpen(update.startState) || (open && !query.eq(getSearchQuery(update.startState)))) latest.current.onFind?.(open ? query.search : '')
          }),
        ],
      }),
    })
    view.current = editor
    const { find } = latest.current
    if (find) {
      editor.dispatch({ effects: setSearchQuery.of(new SearchQuery({ search: find })) })
      openSearchPanel(editor)
      findNext(editor)
    }
    // The page's shortcut keys do not apply in the editor, except for the palette's.
    const stopKeys = (event: KeyboardEvent) => {
      if (!(event.key === 'k' && (event.metaKey || event.ctrlKey))) event.stopPropagation()
    }
    hostElement.addEventListener('keydown', stopKeys)
    return () => {
      hostElement.removeEventListener('keydown', stopKeys)
      editor.destroy()
      view.current = undefined
    }
    // The next effect updates the text.
  }, [label, isEditable, lintsYaml, height, cluster, t])

  useEffect(() => {
    const { current } = view
    const text = current?.state.doc.toString()
    if (current && text !== undefined && text !== value) current.dispatch({ changes: minimalChange(text, value), annotations: changedByPage.of(true) })
  }, [value, label, isEditable, lintsYaml, height, cluster, t])

  useEffect(() => {
    const extension = original === undefined ? [] : unifiedMergeView({ original, mergeControls: false, allowInlineDiffs: true, collapseUnchanged: { margin: 3, minSize: 8 } })
    view.current?.dispatch({ effects: mergeCompartment.current.reconfigure(extension) })
  }, [original, label, isEditable, lintsYaml, height, cluster, t])

  useEffect(() => {
    const { current } = view
    if (!current || problems === undefined) return
    const end = current.state.doc.length
    const diagnostics = problems.map(({ from, to, message }) => ({ from: Math.min(from, end), to: Math.min(Math.max(to, from), end), severity: 'error' as const, message }))
    current.dispatch(setDiagnostics(current.state, diagnostics))
  }, [problems, label, isEditable, lintsYaml, height, cluster, t])

  useEffect(() => {
    const { current } = view
    if (!current || !goTo) return
    current.dispatch({ selection: { anchor: Math.min(goTo.at, current.state.doc.length) }, scrollIntoView: true })
    current.focus()
  }, [goTo])

  return (
    <>
      <p className="tools">
        <button type="button" onClick={() => void (view.current && openSearchPanel(view.current))}>
          {t.find} <kbd aria-hidden="true">{/Mac/.test(navigator.userAgent) ? '⌘F' : 'Ctrl-F'}</kbd>
        </button>
      </p>
      <div className="editor" ref={host} />
    </>
  )
}

/** The minimal change from one text to the other, which keeps folds and the scroll position. */
function minimalChange(before: string, after: string): { from: number; to: number; insert: string } {
  const limit = Math.min(before.length, after.length)
  let from = 0
  while (from < limit && before[from] === after[from]) from++
  let end = 0
  while (end < limit - from && before[before.length - 1 - end] === after[after.length - 1 - end]) end++
  return { from, to: before.length - end, insert: after.slice(from, after.length - end) }
}
