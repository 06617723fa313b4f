// Hits that are selected for an action on several objects. Pure.
import { CONTROL_PLANE } from '../api/client'
import { keyOf, type Pages } from '../api/pages'
import type { Hit } from '../api/types'

/** Maximum number of objects per action. */
export const MAX_OBJECTS = 100

/** All loaded hits by key. */
export function loadedHits({ fresh, pages }: Pages): Map<string, Hit> {
  return new Map([...fresh, ...pages.flatMap(({ hits }) => hits ?? [])].map((hit) => [keyOf(hit), hit]))
}

const templateKey = (hit: Hit) => keyOf({ ...hit, cluster: CONTROL_PLANE })

/** Propagated copies whose template is among the hits. `isCopy` is true for the keys of propagated copies. */
export function copiesOfTemplates(hits: readonly Hit[], isCopy: (key: string) => boolean): Hit[] {
  const templates = new Set(hits.filter(({ cluster }) => cluster === CONTROL_PLANE).map(keyOf))
  return hits.filter((hit) => hit.cluster !== CONTROL_PLANE && isCopy(keyOf(hit)) && templates.has(templateKey(hit)))
}
