// Propagation tabs of an object: placement, topology and drift. Has no side effects.
import type { Tab } from '../../api/address'
import { CONTROL_PLANE, groupOf, type ObjectRef } from '../../api/client'
import type { KubeObject } from '../../api/types'

/** Labels that Karmada sets on a template that a policy has claimed. */
const CLAIM_LABELS = ['propagationpolicy.karmada.io/permanent-id', 'clusterpropagationpolicy.karmada.io/permanent-id']
/** Kinds that are not propagated. */
const NEVER_PROPAGATED = new Set(['Event', 'Lease', 'Node', 'Pod', 'ReplicaSet', 'EndpointSlice', 'APIService', 'SavedSearch'])

export type PlacementTab = 'placement' | 'topology' | 'drift'
export const PLACEMENT_TABS: readonly PlacementTab[] = ['placement', 'topology', 'drift']

export const isPlacementTab = (tab: Tab): tab is PlacementTab => (PLACEMENT_TABS as readonly Tab[]).includes(tab)

/** Propagation tabs of a template or of a propagated copy; none for other objects. */
export function placementTabs({ cluster }: Pick<ObjectRef, 'cluster'>, object: KubeObject): readonly PlacementTab[] {
  const { apiVersion, kind, metadata } = object
  const { labels = {} } = metadata
  if (cluster !== CONTROL_PLANE) return labels['karmada.io/managed'] === 'true' ? PLACEMENT_TABS : []
  if (/(^|\.)(karmada|crowsnest)\.io$/.test(groupOf(apiVersion)) || NEVER_PROPAGATED.has(kind)) return []
  // An object without a policy has no copies; the placement tab explains why.
  return CLAIM_LABELS.some((label) => labels[label] !== undefined) ? PLACEMENT_TABS : ['placement']
}
