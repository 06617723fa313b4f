import { expect, it } from 'vitest'
import { notesOf } from './clusterNotes'

const [warning, readOnly] = ['.metadata.annotations["ui.crowsnest.io/warning"]', '.metadata.annotations["ui.crowsnest.io/read-only"]']

it.each([
  ['a warning', { [warning]: 'Production' }, { warning: 'Production', isReadOnly: false }],
  ['read-only', { [readOnly]: 'true' }, { isReadOnly: true }],
  ['both', { [warning]: 'Production', [readOnly]: 'true' }, { warning: 'Production', isReadOnly: true }],
  ['another value', { [readOnly]: 'false' }, { isReadOnly: false }],
  ['an empty warning', { [warning]: '' }, { isReadOnly: false }],
])('reads %s', (_, columns, expected) => expect(notesOf({ columns })).toEqual(expected))
