// Hits that are selected for an action on several objects. Pure.
import { CONTROL_PLANE } from '../api/client'
import { keyOf, type Pages } from '../api/pages'
import type { Hit } from '../api/types'

/** Maximum number of objects per action. */
export const MAX_OBJECTS = 100

/** All hits of a result by key; undefined while some of its pages are not loaded. */
export function allHits({ fresh, pages, next }: Pages): Map<string, Hit> | undefined {
  const hits = pages.map((page) => page.hits)
  if (next !== undefined || hits.includes(undefined)) return undefined
  return new Map([...fresh, ...hits.flatMap((loaded) => loaded ?? [])].map((hit) => [keyOf(hit), hit]))
}

const templateKey = (hit: Hit) => keyOf({ ...hit, cluster: CONTROL_PLANE })

/** Propagated copies whose template is among the hits. `isCopy` is true for the keys of propagated copies. */
export function copiesOfTemplates(hits: readonly Hit[], isCopy: (key: string) => boolean): Hit[] {
  const templates = new Set(hits.filter(({ cluster }) => cluster === CONTROL_PLANE).map(keyOf))
  return hits.filter((hit) => hit.cluster !== CONTROL_PLANE && isCopy(keyOf(hit)) && templates.has(templateKey(hit)))
}
