// A manifest's text: folded, searched, edited, compared. It lives in a shadow tree: there its styles are sheets made by script, which
// the content security policy allows, and no <style> elements.
import { defaultKeymap, history, historyKeymap } from '@codemirror/commands'
import { yaml } from '@codemirror/lang-yaml'
import { bracketMatching, codeFolding, foldGutter, foldKeymap, HighlightStyle, indentOnInput, syntaxHighlighting } from '@codemirror/language'
import { linter, lintGutter, lintKeymap } from '@codemirror/lint'
import { unifiedMergeView } from '@codemirror/merge'
import { findNext, getSearchQuery, openSearchPanel, search, searchKeymap, SearchQuery, searchPanelOpen, setSearchQuery } from '@codemirror/search'
import { EditorState, type Extension } from '@codemirror/state'
import { drawSelection, EditorView, highlightActiveLine, highlightSpecialChars, keymap, lineNumbers } from '@codemirror/view'
import { tags } from '@lezer/highlight'
import { useEffect, useRef } from 'react'
import { remarks } from '../../parts/lint'
import { useTextOf } from '../../text'
import { object as texts } from '../../text/object'
import { help } from './help'
import type { Kind } from './schema'
import { parse } from './yaml'

const look = EditorView.theme({
  '&': { color: 'var(--text)', backgroundColor: 'var(--raised)', border: '1px solid var(--line)', fontSize: '12.5px' },
  '&.cm-focused': { outline: '2px solid var(--accent)', outlineOffset: '1px' },
  '.cm-scroller': { fontFamily: 'ui-monospace, monospace', lineHeight: '1.5', maxHeight: 'calc(100vh - 300px)', minHeight: '8em' },
  '.cm-content': { caretColor: 'var(--text)' },
  '.cm-cursor': { borderLeftColor: 'var(--text)' },
  '.cm-gutters': { backgroundColor: 'var(--raised)', color: 'var(--muted)', border: 'none' },
  '.cm-activeLine, .cm-activeLineGutter': { backgroundColor: 'color-mix(in srgb, var(--accent) 7%, transparent)' },
  '.cm-selectionBackground, &.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground': { backgroundColor: 'var(--chosen)' },
  '.cm-foldPlaceholder': { backgroundColor: 'var(--chosen)', border: 'none', color: 'var(--text)', padding: '0 6px' },
  '.cm-panels': { backgroundColor: 'var(--bg)', color: 'var(--text)' },
  '.cm-panel.cm-search :is(input, button, label)': { fontSize: '12.5px' },
  '.cm-textfield:focus-visible, .cm-button:focus-visible, .cm-search :focus-visible': { outline: '2px solid var(--accent)' },
  '.cm-panels-top': { borderBottom: '1px solid var(--line)' },
  '.cm-textfield, .cm-button': { backgroundColor: 'var(--raised)', backgroundImage: 'none', border: '1px solid var(--line)', color: 'var(--text)', borderRadius: '4px' },
  '.cm-searchMatch': { backgroundColor: 'color-mix(in srgb, var(--pattern) 25%, transparent)' },
  '.cm-searchMatch-selected': { outline: '2px solid var(--pattern)' },
  '.cm-changedLine': { backgroundColor: 'color-mix(in srgb, var(--good) 12%, transparent) !important' },
  '.cm-changedText': { background: 'none !important', fontWeight: '700' },
  '.cm-deletedChunk': { backgroundColor: 'color-mix(in srgb, var(--bad) 12%, transparent)' },
  '.cm-deletedChunk .cm-deletedText': { background: 'none', fontWeight: '700' },
  'del.cm-deletedText': { background: 'color-mix(in srgb, var(--bad) 18%, transparent)', padding: '0 2px' },
  '.cm-collapsedLines': { background: 'var(--bg)', color: 'var(--muted)' },
  '.cm-collapsedLines:before, .cm-collapsedLines:after': { content: '"⋯"' },
  '.cm-meaning, .cm-completionInfo': { maxWidth: '460px', padding: '4px 8px', font: '13px/1.4 system-ui, sans-serif' },
  '.cm-tooltip.cm-tooltip-autocomplete > ul > li[aria-selected]': { backgroundColor: 'var(--chosen)', color: 'var(--text)' },
  '.cm-tooltip': { backgroundColor: 'var(--raised)', border: '1px solid var(--line)', color: 'var(--text)' },
})

const colours = HighlightStyle.define([
  { tag: [tags.propertyName, tags.definition(tags.propertyName), tags.attributeName], color: 'var(--accent)' },
  { tag: [tags.string, tags.special(tags.string)], color: 'var(--value)' },
  { tag: [tags.number, tags.bool, tags.null, tags.keyword, tags.typeName], color: 'var(--pattern)' },
  { tag: [tags.comment, tags.meta], color: 'var(--muted)' },
])

interface CodeProps {
  text: string
  label: string
  /** What it was: the text is shown as a change of that. */
  before?: string | undefined
  /** Absent: it is only read. */
  onChange?: ((text: string) => void) | undefined
  /** What its kind has, for whom it is edited. */
  kind?: Kind | undefined
  /** What is searched for inside. */
  find?: string | undefined
  onFind?: ((text: string) => void) | undefined
}

export function Code(props: CodeProps) {
  const t = useTextOf(texts)
  const place = useRef<HTMLDivElement>(null)
  const editor = useRef<EditorView>(undefined)
  const latest = useRef(props)
  useEffect(() => {
    latest.current = props
  })
  const { text, label, before } = props
  const editable = props.onChange !== undefined

  useEffect(() => {
    const host = place.current
    if (!host) return
    const root = host.shadowRoot ?? host.attachShadow({ mode: 'open' })
    const heard = EditorView.updateListener.of((update) => {
      if (update.docChanged) latest.current.onChange?.(update.state.doc.toString())
      const found = getSearchQuery(update.state)
      const open = searchPanelOpen(update.state)
      if (open !== searchPanelOpen(update.startState) || (open && !found.eq(getSearchQuery(update.startState)))) latest.current.onFind?.(open ? found.search : '')
    })
    const state = EditorState.create({
      doc: latest.current.text,
      extensions: [
        lineNumbers(),
        codeFolding(),
        foldGutter(),
        highlightSpecialChars(),
        drawSelection(),
        bracketMatching(),
        search({ top: true }),
        syntaxHighlighting(colours),
        yaml(),
        keymap.of([...searchKeymap, ...foldKeymap]),
        EditorState.phrases.of(t.editorPhrases),
        EditorView.contentAttributes.of({ 'aria-label': label, ...(!editable && { tabindex: '0' }) }),
        look,
        remarks,
        heard,
        // Tab leads on, to what comes after the text; it indents nothing.
        editable ? editing(() => latest.current.kind) : [EditorState.readOnly.of(true), EditorView.editable.of(false), keymap.of(defaultKeymap)],
        before === undefined ? [] : unifiedMergeView({ original: before, mergeControls: false, allowInlineDiffs: true, collapseUnchanged: { margin: 3, minSize: 8 } }),
      ],
    })
    const view = new EditorView({ state, root, parent: root })
    editor.current = view
    const { find } = latest.current
    if (find) {
      view.dispatch({ effects: setSearchQuery.of(new SearchQuery({ search: find })) })
      openSearchPanel(view)
      findNext(view)
    }
    // The page's keys are not for what is written here; the palette's are.
    const keep = (event: KeyboardEvent) => {
      if (!(event.key === 'k' && (event.metaKey || event.ctrlKey))) event.stopPropagation()
    }
    host.addEventListener('keydown', keep)
    return () => {
      host.removeEventListener('keydown', keep)
      view.destroy()
    }
  }, [editable, before, label, t])

  useEffect(() => {
    const view = editor.current
    const now = view?.state.doc.toString()
    if (!view || now === undefined || now === text) return
    view.dispatch({ changes: difference(now, text) })
  }, [text])

  return (
    <>
      <p className="tools">
        <button type="button" onClick={() => void (editor.current && openSearchPanel(editor.current))}>
          {t.findInside} <kbd aria-hidden="true">{/Mac/.test(navigator.userAgent) ? '⌘F' : 'Ctrl-F'}</kbd>
        </button>
      </p>
      <div className="code" ref={place} />
    </>
  )
}

function editing(kind: () => Kind | undefined): Extension {
  return [
    help(kind),
    history(),
    indentOnInput(),
    highlightActiveLine(),
    lintGutter(),
    linter((view) => parse(view.state.doc.toString()).problems.map((problem) => ({ ...problem, severity: 'error' as const })), { delay: 300 }),
    keymap.of([...defaultKeymap, ...historyKeymap, ...lintKeymap]),
  ]
}

/** What leads from the one text to the other, so that what is the same keeps its folds and its place. */
export function difference(now: string, wanted: string): { from: number; to: number; insert: string } {
  const most = Math.min(now.length, wanted.length)
  let from = 0
  while (from < most && now[from] === wanted[from]) from++
  let end = 0
  while (end < most - from && now[now.length - 1 - end] === wanted[wanted.length - 1 - end]) end++
  return { from, to: now.length - end, insert: wanted.slice(from, wanted.length - end) }
}
