// Commands of the palette for the shown object: its views, and actions on it. Has no side effects.
import { objectAddress, type Tab } from '../../api/address'
import type { ObjectRef } from '../../api/client'
import { accessAddress } from '../analysis/access'
import { canRestart, canScale } from './facts'

export interface ViewCommand {
  name: Tab | 'access'
  href: string
}

/** The tabs of an object except for the shown one, and the review of who may get the object. */
export function viewCommands(ref: ObjectRef, tabs: readonly Tab[], shown: Tab): ViewCommand[] {
  return [
    ...tabs.filter((tab) => tab !== shown).map((tab): ViewCommand => ({ name: tab, href: objectAddress(ref, tab) })),
    { name: 'access', href: accessAddress(ref) },
  ]
}

export type ActionName = 'edit' | 'scale' | 'restart'

/** Permissions of the user for an object, by which the buttons of its page are enabled. */
export interface Permissions {
  /** False as well while the values of a Secret are hidden. */
  mayEdit: boolean
  mayScale: boolean
  mayPatch: boolean
}

/** The actions that an object has and that its cluster allows the user. */
export function allowedActions(resource: Pick<ObjectRef, 'apiVersion' | 'resource'>, { mayEdit, mayScale, mayPatch }: Permissions): ActionName[] {
  return [...(mayEdit ? (['edit'] as const) : []), ...(mayScale && canScale(resource) ? (['scale'] as const) : []), ...(mayPatch && canRestart(resource) ? (['restart'] as const) : [])]
}
