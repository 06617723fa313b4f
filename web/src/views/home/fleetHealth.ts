// Overall health of the fleet, for the home page. Has no side effects.
import type { ProblemName } from '../../api/problems'
import type { ClusterStatus } from '../../api/types'
import type { Tone } from '../../parts/status'
import { favouritesFirst } from '../../prefs'

export interface FleetHealth {
  tone: Tone
  /** Clusters that are not ready. */
  notReady: number
}

/**
 * Overall health: bad if a cluster is not ready or an object is in a bad state, a warning if there are only evictions in progress or warnings, or if
 * the result is incomplete.
 */
export function fleetHealthOf(clusters: readonly ClusterStatus[], problems: readonly { name: ProblemName; tone: Tone }[], isComplete = true): FleetHealth {
  const notReady = clusters.filter(({ ready }) => ready !== 'True').length
  const isBad = notReady > 0 || problems.some(({ tone }) => tone === 'bad')
  const tone: Tone = isBad ? 'bad' : problems.length > 0 || !isComplete ? 'warn' : clusters.length === 0 ? 'idle' : 'good'
  return { tone, notReady }
}

/** The first `limit` clusters for the home page: favourites first, and among the others those that are not ready first. */
export function clustersToShow(clusters: readonly ClusterStatus[], limit: number, favourites: readonly string[]): ClusterStatus[] {
  const sorted = [...clusters].sort((a, b) => Number(a.ready === 'True') - Number(b.ready === 'True') || a.name.localeCompare(b.name))
  return favouritesFirst(sorted, favourites, ({ name }) => name).slice(0, limit)
}
