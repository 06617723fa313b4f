// Queries for problems of the fleet, and their trends.
import type { Tone } from '../parts/status'
import { queryForBucket } from '../parts/time/times'
import { countObjects, type CountResult } from './kube'
import type { SkippedCluster } from './types'

export const PROBLEMS = [
  { name: 'nodes', q: 'kind:node -status:Ready', tone: 'bad' },
  { name: 'unscheduled', q: 'kind:resourcebinding,clusterresourcebinding is:unscheduled', tone: 'bad' },
  { name: 'drifted', q: 'kind:work is:drifted', tone: 'bad' },
  { name: 'conflicting', q: 'kind:work is:conflicting', tone: 'bad' },
  { name: 'evicting', q: 'kind:resourcebinding,clusterresourcebinding is:evicting', tone: 'busy' },
  { name: 'quota', q: 'kind:resourcebinding reason:QuotaExceeded', tone: 'bad' },
  { name: 'unhealthy', q: 'kind:resourcebinding,clusterresourcebinding health:Unhealthy', tone: 'bad' },
  { name: 'pods', q: 'kind:pod -status:Running,Completed,Succeeded', tone: 'bad' },
  // Workloads that are not propagated have no binding that reports their health.
  { name: 'workloads', q: 'kind:deployment.apps,statefulset.apps,daemonset.apps,job.batch is:unhealthy -cluster:@control-plane', tone: 'warn' },
  { name: 'warnings', q: 'kind:event type:Warning last:<1h', tone: 'warn' },
] as const satisfies readonly { name: string; q: string; tone: Tone }[]

export type ProblemName = (typeof PROBLEMS)[number]['name']

export interface Problem {
  name: ProblemName
  q: string
  tone: Tone
  result: CountResult
}

export interface ProblemReport {
  problems: Problem[]
  /** Clusters whose data is missing or outdated, so that there may be further problems. */
  skipped: SkippedCluster[]
}

/** Problems that affect at least one object, with counts by cluster. */
export async function readProblems(signal: AbortSignal): Promise<ProblemReport> {
  const all = await Promise.all(PROBLEMS.map(async ({ name, q, tone }) => ({ name, q, tone, result: await countObjects(q, ['cluster'], signal) })))
  return { problems: all.filter(({ result }) => result.total > 0), skipped: mergeSkipped(all.map(({ result }) => result.skipped)) }
}

/** Merges the skipped clusters of several results, with one entry per cluster: one for missing data, if there is one, rather than for outdated data. */
export function mergeSkipped(results: readonly SkippedCluster[][]): SkippedCluster[] {
  const merged = new Map<string, SkippedCluster>()
  for (const entry of results.flat()) {
    const before = merged.get(entry.cluster)
    if (!before || (entry.missing && !before.missing)) merged.set(entry.cluster, entry)
  }
  return [...merged.values()].sort((a, b) => a.cluster.localeCompare(b.cluster))
}

/** Points of a trend, in minutes before now. */
const TREND_MINUTES = [60, 45, 30, 15] as const

/** Queries for the Events of each quarter of the last hour, oldest first. `seconds` is the current Unix time. */
export function quarterQueries(q: string, seconds: number): string[] {
  return TREND_MINUTES.map((minutes) => queryForBucket(q, { from: seconds - minutes * 60, to: seconds - (minutes - 15) * 60 }))
}

/** Number of objects at each point of the last hour, oldest first; for Events, their number in each quarter of the hour. */
export async function readPastCounts(name: ProblemName, q: string, signal: AbortSignal): Promise<number[]> {
  const queries = isCountedByTime(name) ? quarterQueries(q, Date.now() / 1000) : TREND_MINUTES.map((minutes) => `${q} at:now-${minutes}m`)
  const counts = await Promise.all(queries.map((query) => countObjects(query, [], signal)))
  return counts.map(({ total }) => total)
}

const isCountedByTime = (name: ProblemName) => name === 'warnings'

/** Points of a trend: the past counts and the current one. The last quarter of Events already contains the current ones. */
export const trendOf = (name: ProblemName, pastCounts: readonly number[], now: number): number[] => (isCountedByTime(name) ? [...pastCounts] : [...pastCounts, now])
