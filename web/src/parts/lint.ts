// Theme for error marks in an editor. CodeMirror's own theme uses data: images, which the content security policy forbids.
import { EditorView } from '@codemirror/view'

export const lintTheme = EditorView.theme({
  '.cm-lintRange': { backgroundImage: 'none', textDecoration: 'underline wavy 1px', textUnderlineOffset: '3px' },
  '.cm-lintRange-error': { backgroundImage: 'none', textDecorationColor: 'var(--bad)' },
  '.cm-lintRange-active': { backgroundColor: 'var(--chosen)' },
  '.cm-lint-marker': { textAlign: 'center', fontWeight: '700', lineHeight: '1em' },
  '.cm-lint-marker-error': { content: 'normal', color: 'var(--bad)' },
  '.cm-lint-marker-error::before': { content: '"!"' },
  '.cm-diagnostic-error': { borderLeft: '5px solid var(--bad)' },
})
