// YAML editor (CodeMirror). It lives in a shadow root with constructed style sheets, which the content security policy allows; in the page
// itself they would be style elements, which the policy forbids.
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
import { help } from './help'
import { remarks } from './lint'
import { schemasOf, validate, type Words } from './validate'
import { parse, type Problem } from './yaml'
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
  /** Moves the cursor there; a new object with the same position moves it again. */
  goTo?: { at: number } | undefined
  /** Maximum height, in lines. */
  height?: string
  /** The cluster whose schema is used for completion. */
  cluster?: string
  /** The search text in the editor. */
  find?: string | undefined
  onFind?: (text: string) => void
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
  '.cm-panel.cm-search :is(input, button, label)': { fontSize: '12.5px' },
  '.cm-panel.cm-search :focus-visible': { outline: '2px solid var(--accent)' },
  '.cm-textfield, .cm-button': { backgroundImage: 'none' },
  '.cm-searchMatch-selected': { outline: '2px solid var(--pattern)' },
  '.cm-meaning': { maxWidth: '460px', padding: '4px 8px', font: '13px/1.4 system-ui, sans-serif' },
  'del.cm-deletedText': { background: 'color-mix(in srgb, var(--bad) 18%, transparent)', padding: '0 2px' },
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

/** Reports invalid YAML and, where the cluster has a schema, values of another type than their field. */
const checked = (cluster: string, words: Words) =>
  linter(
    async (view) => {
      const text = view.state.doc.toString()
      const { problems } = parse(text)
      const found = problems.length > 0 ? problems : validate(text, await schemasOf(cluster, text), words)
      return found.map((problem) => ({ ...problem, severity: 'error' as const }))
    },
    { delay: 300 },
  )

/** Marks changes made by the page. */
const ours = Annotation.define<boolean>()

export function Editor({ label, value, onChange, original, problems, goTo, height = '60vh', cluster = CONTROL_PLANE, find, onFind }: EditorProps) {
  const t = useTextOf(queryText)
  const host = useRef<HTMLDivElement>(null)
  const view = useRef<EditorView>(undefined)
  const latest = useRef({ value, find, onChange, onFind })
  const merging = useRef(new Compartment())
  useEffect(() => {
    latest.current = { value, find, onChange, onFind }
  })

  const writes = onChange !== undefined
  const checks = writes && problems === undefined
  useEffect(() => {
    const place = host.current
    if (!place) return
    const root = place.shadowRoot ?? place.attachShadow({ mode: 'open' })
    const editing: Extension = writes
      ? [history(), indentOnInput(), closeBrackets(), help(cluster), lintGutter(), highlightActiveLine(), highlightActiveLineGutter(), checks ? checked(cluster, t) : []]
      : [EditorState.readOnly.of(true), EditorView.editable.of(false)]
    const made = new EditorView({
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
          remarks,
          EditorView.theme({ '.cm-scroller': { maxHeight: height, overflow: 'auto' } }),
          EditorView.lineWrapping,
          EditorView.contentAttributes.of({ 'aria-label': label, tabindex: '0' }),
          // Tab moves the focus, as everywhere.
          keymap.of([...closeBracketsKeymap, ...defaultKeymap, ...searchKeymap, ...historyKeymap, ...foldKeymap, ...lintKeymap]),
          editing,
          merging.current.of([]),
          EditorView.updateListener.of((update) => {
            if (update.docChanged && !update.transactions.some((one) => one.annotation(ours))) latest.current.onChange?.(update.state.doc.toString())
            const found = getSearchQuery(update.state)
            const open = searchPanelOpen(update.state)
            if (open !== searchPanelOpen(update.startState) || (open && !found.eq(getSearchQuery(update.startState)))) latest.current.onFind?.(open ? found.search : '')
          }),
        ],
      }),
    })
    view.current = made
    const { find } = latest.current
    if (find) {
      made.dispatch({ effects: setSearchQuery.of(new SearchQuery({ search: find })) })
      openSearchPanel(made)
      findNext(made)
    }
    // The page's shortcut keys do not apply in the editor, except for the palette's.
    const keep = (event: KeyboardEvent) => {
      if (!(event.key === 'k' && (event.metaKey || event.ctrlKey))) event.stopPropagation()
    }
    place.addEventListener('keydown', keep)
    return () => {
      place.removeEventListener('keydown', keep)
      made.destroy()
      view.current = undefined
    }
    // The text is updated below.
  }, [label, writes, checks, height, cluster, t])

  useEffect(() => {
    const { current } = view
    const now = current?.state.doc.toString()
    if (current && now !== undefined && now !== value) current.dispatch({ changes: difference(now, value), annotations: ours.of(true) })
  }, [value, label, writes, checks, height, cluster, t])

  useEffect(() => {
    const shown = original === undefined ? [] : unifiedMergeView({ original, mergeControls: false, allowInlineDiffs: true, collapseUnchanged: { margin: 3, minSize: 8 } })
    view.current?.dispatch({ effects: merging.current.reconfigure(shown) })
  }, [original, label, writes, checks, height, cluster, t])

  useEffect(() => {
    const { current } = view
    if (!current || problems === undefined) return
    const end = current.state.doc.length
    const shown = problems.map(({ from, to, message }) => ({ from: Math.min(from, end), to: Math.min(Math.max(to, from), end), severity: 'error' as const, message }))
    current.dispatch(setDiagnostics(current.state, shown))
  }, [problems, label, writes, checks, height, cluster, t])

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
          {t.findInside} <kbd aria-hidden="true">{/Mac/.test(navigator.userAgent) ? '⌘F' : 'Ctrl-F'}</kbd>
        </button>
      </p>
      <div className="editor" ref={host} />
    </>
  )
}

/** The minimal change from one text to the other, which keeps folds and the scroll position. */
function difference(now: string, wanted: string): { from: number; to: number; insert: string } {
  const most = Math.min(now.length, wanted.length)
  let from = 0
  while (from < most && now[from] === wanted[from]) from++
  let end = 0
  while (end < most - from && now[now.length - 1 - end] === wanted[wanted.length - 1 - end]) end++
  return { from, to: now.length - end, insert: wanted.slice(from, wanted.length - end) }
}
