// The answer to "is my fleet OK?". Pure.
import type { ProblemName } from '../../api/problems'
import type { ClusterStatus } from '../../api/types'
import type { Tone } from '../../parts/status'

export interface Verdict {
  tone: Tone
  clusters: number
  /** Clusters that are not ready. */
  down: number
  /** Problems that need attention. */
  problems: number
}

/** Clusters that are not ready are worst; progress and warnings alone are no problem. */
export function verdictOf(clusters: readonly ClusterStatus[], problems: readonly { name: ProblemName; tone: Tone }[]): Verdict {
  const down = clusters.filter(({ ready }) => ready !== 'True').length
  const bad = problems.filter(({ tone }) => tone === 'bad').length
  const tone: Tone = down > 0 || bad > 0 ? 'bad' : problems.length > 0 ? 'warn' : clusters.length === 0 ? 'idle' : 'good'
  return { tone, clusters: clusters.length, down, problems: problems.length }
}

/** Clusters that are shown on the home page: those with problems first. */
export function shownClusters(clusters: readonly ClusterStatus[], most: number): ClusterStatus[] {
  return [...clusters].sort((a, b) => Number(a.ready === 'True') - Number(b.ready === 'True') || a.name.localeCompare(b.name)).slice(0, most)
}
