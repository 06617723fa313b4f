import { describe, expect, it, test } from 'vitest'
import type { KubeObject } from '../../api/types'
import { needsDryRun, withVersions } from './draftChecks'

test.each([
  ['a draft that was never stored', { text: 'a', storedText: undefined, isApplying: false }, true],
  ['a stored draft', { text: 'a', storedText: 'a', isApplying: false }, false],
  ['a stored draft that was edited', { text: 'b', storedText: 'a', isApplying: false }, true],
  ['a draft that is being stored', { text: 'a', storedText: undefined, isApplying: true }, false],
  ['an edit of a draft that is being stored', { text: 'b', storedText: 'a', isApplying: true }, false],
])('%s', (_name, state, expected) => expect(needsDryRun(state)).toBe(expected))

describe('the draft after it was stored', () => {
  const object = (name: string, resourceVersion?: string): KubeObject => ({ apiVersion: 'v1', kind: 'ConfigMap', metadata: { name, ...(resourceVersion !== undefined && { resourceVersion }) } })

  it('has the versions of the stored objects, and needs no dry run', () => {
    const text = 'metadata: {name: a}\n  resourceVersion: "7"\n---\n  resourceVersion: 9\n'
    const manifests = [{ object: object('a', '7') }, { object: object('b', '9') }]
    const storedText = withVersions(text, manifests, [object('a', '12'), object('b', '13')])
    expect(storedText).toBe('metadata: {name: a}\n  resourceVersion: "12"\n---\n  resourceVersion: "13"\n')
    expect(needsDryRun({ text: storedText, storedText, isApplying: false })).toBe(false)
  })

  it('keeps objects that were not stored, and drafts without a version', () => {
    const text = 'resourceVersion: "7"\n---\nresourceVersion: "9"\n'
    expect(withVersions(text, [{ object: object('a', '7') }, { object: object('b', '9') }], [object('a', '12')])).toBe('resourceVersion: "12"\n---\nresourceVersion: "9"\n')
    expect(withVersions('kind: ConfigMap\n', [{ object: object('a') }], [object('a', '12')])).toBe('kind: ConfigMap\n')
  })
})
