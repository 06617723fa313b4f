// Views of an object's propagation: why it is where it is, its topology, and its drift.
import { writeAddress } from '../../api/address'
import { CONTROL_PLANE, groupOf, type ObjectRef } from '../../api/client'
import { templateAddress, type TemplatePage } from '../../api/propagation'
import type { KubeObject } from '../../api/types'

/** Labels of a template that a policy has claimed. */
const CLAIMED = ['propagationpolicy.karmada.io/permanent-id', 'clusterpropagationpolicy.karmada.io/permanent-id']
/** Kinds that the control plane keeps for itself. */
const NEVER_PROPAGATED = new Set(['Event', 'Lease', 'Node', 'Pod', 'ReplicaSet', 'EndpointSlice', 'APIService', 'SavedSearch'])

export interface PlacementLink {
  page: TemplatePage
  href: string
}

/** Links for a template and for a propagated copy of one; none for other objects. */
export function placementLinks({ cluster }: ObjectRef, object: KubeObject): PlacementLink[] {
  const { apiVersion, kind, metadata } = object
  const { labels = {}, name, namespace } = metadata
  const template = { apiVersion, kind, name, ...(namespace !== undefined && { namespace }) }
  const why: PlacementLink = { page: 'why', href: templateAddress('why', template) }
  const topology: PlacementLink = { page: 'topology', href: templateAddress('topology', template) }
  if (cluster !== CONTROL_PLANE) {
    if (labels['karmada.io/managed'] !== 'true') return []
    return [why, topology, { page: 'drift', href: `/drift${writeAddress({ ...template, cluster })}` }]
  }
  if (/(^|\.)(karmada|crowsnest)\.io$/.test(groupOf(apiVersion)) || NEVER_PROPAGATED.has(kind)) return []
  // An object without a policy has an explanation of that, and no copies.
  return CLAIMED.some((label) => labels[label] !== undefined) ? [why, topology, { page: 'drift', href: templateAddress('drift', template) }] : [why]
}
