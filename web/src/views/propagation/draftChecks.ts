// Decides if a draft is checked by a dry run, and updates the text of a draft after it was stored. Has no side effects.
import type { KubeObject } from '../../api/types'
import type { Manifest } from '../../parts/manifest'

export interface DraftState {
  text: string
  /** The text after all of its objects were stored, with their new resource versions; undefined before that, and after an edit. */
  storedText: string | undefined
  /** True while the draft is being stored. */
  isApplying: boolean
}

/**
 * True if the draft must be checked by a dry run. A stored text is known to be valid, and its dry run would only report a conflict once another
 * writer changes the object. A dry run during a write would check the version that the write replaces.
 */
export function needsDryRun({ text, storedText, isApplying }: DraftState): boolean {
  return !isApplying && text !== storedText
}

/** Replaces each resourceVersion in the draft with that of the stored object, so that the draft can be applied again. */
export function withVersions(text: string, manifests: readonly Pick<Manifest, 'object'>[], storedObjects: readonly KubeObject[]): string {
  return storedObjects.reduce((changed, stored, nth) => {
    const before = manifests[nth]?.object.metadata.resourceVersion
    const after = stored.metadata.resourceVersion
    if (!before || !after) return changed
    return changed.replace(new RegExp(`(resourceVersion: )"?${before}"?`), `$1"${after}"`)
  }, text)
}
