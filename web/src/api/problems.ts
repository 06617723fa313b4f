// Problem queries of the whole fleet, by severity.
import type { Tone } from '../parts/status'
import { within } from '../parts/time/times'
import { countObjects, type CountResult } from './kube'

export const PROBLEMS = [
  { name: 'nodes', q: 'kind:node -status:Ready', tone: 'bad' },
  { name: 'unscheduled', q: 'kind:resourcebinding,clusterresourcebinding is:unscheduled', tone: 'bad' },
  { name: 'drifted', q: 'kind:work is:drifted', tone: 'bad' },
  { name: 'conflicting', q: 'kind:work is:conflicting', tone: 'bad' },
  { name: 'evicting', q: 'kind:resourcebinding,clusterresourcebinding is:evicting', tone: 'busy' },
  { name: 'quota', q: 'kind:resourcebinding reason:QuotaExceeded', tone: 'bad' },
  { name: 'unhealthy', q: 'kind:resourcebinding,clusterresourcebinding health:Unhealthy', tone: 'bad' },
  { name: 'pods', q: 'kind:pod -status:Running,Completed,Succeeded', tone: 'bad' },
  { name: 'warnings', q: 'kind:event type:Warning last:<1h', tone: 'warn' },
] as const satisfies readonly { name: string; q: string; tone: Tone }[]

export type ProblemName = (typeof PROBLEMS)[number]['name']

export interface Problem {
  name: ProblemName
  q: string
  tone: Tone
  found: CountResult
}

/** Problems with at least one object, with the clusters that have them. */
export async function problemsOf(signal: AbortSignal): Promise<Problem[]> {
  const all = await Promise.all(PROBLEMS.map(async ({ name, q, tone }) => ({ name, q, tone, found: await countObjects(q, ['cluster'], signal) })))
  return all.filter(({ found }) => found.total > 0)
}

/** Points of a trend, in minutes before now. */
const POINTS = [60, 45, 30, 15] as const

/** The queries for Events of each quarter of the last hour, oldest first: they are counted by their own time. */
export function quarters(q: string, seconds: number): string[] {
  return POINTS.map((minutes) => within(q, { from: seconds - minutes * 60, to: seconds - (minutes - 15) * 60 }))
}

/** Number of matches at each point of the last hour, oldest first; of Events, in each quarter of it. */
export async function pastCounts(name: ProblemName, q: string, signal: AbortSignal): Promise<number[]> {
  const queries = isCountedByTime(name) ? quarters(q, Date.now() / 1000) : POINTS.map((minutes) => `${q} at:now-${minutes}m`)
  const counts = await Promise.all(queries.map((query) => countObjects(query, [], signal)))
  return counts.map(({ total }) => total)
}

const isCountedByTime = (name: ProblemName) => name === 'warnings'

/** The last hour up to now: past counts are requested rarely, and the current one is always that of the problem. */
export const trendOf = (name: ProblemName, past: readonly number[], now: number): number[] => (isCountedByTime(name) ? [...past] : [...past, now])
