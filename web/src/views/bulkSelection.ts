// Hits that are selected for an action on several objects. Has no side effects.
import { CONTROL_PLANE } from '../api/client'
import { keyOf, type Pages } from '../api/pages'
import type { Hit } from '../api/types'

/** Maximum number of objects per action. */
export const MAX_OBJECTS = 100

export type SelectionStep = { load: true } | { selected: Map<string, Hit> }

/** The next step of selecting all hits of a result: to load a missing page, or to select the loaded hits, also if a page could not be loaded. */
export function nextSelectionStep({ fresh, pages, next }: Pages, hasFailed: boolean): SelectionStep {
  const hits = pages.map((page) => page.hits)
  const isComplete = next === undefined && !hits.includes(undefined)
  if (!isComplete && !hasFailed) return { load: true }
  return { selected: new Map([...fresh, ...hits.flatMap((loaded) => loaded ?? [])].map((hit) => [keyOf(hit), hit])) }
}

const templateKey = (hit: Hit) => keyOf({ ...hit, cluster: CONTROL_PLANE })

/** Propagated copies whose template is among the hits. `isCopy` is true for the keys of propagated copies. */
export function copiesOfTemplates(hits: readonly Hit[], isCopy: (key: string) => boolean): Hit[] {
  const templates = new Set(hits.filter(({ cluster }) => cluster === CONTROL_PLANE).map(keyOf))
  return hits.filter((hit) => hit.cluster !== CONTROL_PLANE && isCopy(keyOf(hit)) && templates.has(templateKey(hit)))
}
