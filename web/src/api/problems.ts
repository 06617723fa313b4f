// Problem queries of the whole fleet, by severity.
import type { Tone } from '../parts/status'
import { counted, type Counted } from './kube'

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
  found: Counted
}

/** Problems with at least one object, with the clusters that have them. */
export async function problemsOf(signal: AbortSignal): Promise<Problem[]> {
  const all = await Promise.all(PROBLEMS.map(async ({ name, q, tone }) => ({ name, q, tone, found: await counted(q, ['cluster'], signal) })))
  return all.filter(({ found }) => found.total > 0)
}

/** Points of a trend, in minutes before now. */
const POINTS = [60, 45, 30, 15] as const

/** Number of matches over the last hour, oldest first, up to `now`. */
export async function trendOf(q: string, now: number, signal: AbortSignal): Promise<number[]> {
  const before = await Promise.all(POINTS.map((minutes) => counted(`${q} at:now-${minutes}m`, [], signal)))
  return [...before.map(({ total }) => total), now]
}
