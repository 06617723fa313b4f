// The answer to "is my fleet OK?". Pure.
import type { ProblemName } from '../../api/problems'
import type { ClusterStatus } from '../../api/types'
import type { Tone } from '../../parts/status'

export interface Verdict {
  tone: Tone
  /** Clusters that are not ready. */
  notReady: number
}

/** Clusters that are not ready and objects in a bad state are worst; evictions in progress and warnings alone are a warning. */
export function verdictOf(clusters: readonly ClusterStatus[], problems: readonly { name: ProblemName; tone: Tone }[]): Verdict {
  const notReady = clusters.filter(({ ready }) => ready !== 'True').length
  const isBad = notReady > 0 || problems.some(({ tone }) => tone === 'bad')
  const tone: Tone = isBad ? 'bad' : problems.length > 0 ? 'warn' : clusters.length === 0 ? 'idle' : 'good'
  return { tone, notReady }
}

/** Clusters that are shown on the home page: those that are not ready first. */
export function shownClusters(clusters: readonly ClusterStatus[], most: number): ClusterStatus[] {
  return [...clusters].sort((a, b) => Number(a.ready === 'True') - Number(b.ready === 'True') || a.name.localeCompare(b.name)).slice(0, most)
}
