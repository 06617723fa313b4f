// Commands of the palette that lead to the views of the shown object. Has no side effects.
import { objectAddress, type Tab } from '../../api/address'
import type { ObjectRef } from '../../api/client'
import { accessAddress } from '../analysis/access'

export interface ViewCommand {
  name: Tab | 'edit' | 'access'
  href: string
}

/** The tabs of an object except for the shown one, the editor and the review of who may get the object. */
export function viewCommands(ref: ObjectRef, tabs: readonly Tab[], shown: Tab): ViewCommand[] {
  return [
    ...tabs.filter((tab) => tab !== shown).map((tab): ViewCommand => ({ name: tab, href: objectAddress(ref, tab) })),
    { name: 'edit', href: objectAddress(ref, 'yaml', { edit: 'true' }) },
    { name: 'access', href: accessAddress(ref) },
  ]
}
