// Problems that the user has acknowledged in this browser. Has no side effects.
import type { ProblemName } from '../../api/problems'
import type { FacetValue } from '../../api/types'
import type { Acknowledgement, Acknowledgements } from '../../prefs'

/** The extent of a problem, by which a change is recognized. */
interface CountedProblem {
  name: ProblemName
  result: { total: number; facets: Record<string, FacetValue[]> }
}

/** An acknowledgement of a problem in its current extent. Times are in Unix milliseconds. */
export function acknowledge({ result }: CountedProblem, at: number, countedAt = at): Acknowledgement {
  const clusters = Object.fromEntries((result.facets.cluster ?? []).map(({ value, count }) => [value, count]))
  return { at: new Date(at).toISOString(), countedAt: new Date(countedAt).toISOString(), total: result.total, clusters }
}

/**
 * The acknowledgements that are still valid for problems that were read at a time (Unix milliseconds). A problem needs attention again if it affects
 * more objects than before, in all clusters or in one, or after it was resolved. If it affects fewer, more than these are a change. The result is
 * the same object if nothing changes.
 */
export function validAcknowledgements(before: Acknowledgements, problems: readonly CountedProblem[], readAt: number): Acknowledgements {
  const entries = Object.entries(before)
  const after = entries.flatMap(([name, acknowledgement]): [string, Acknowledgement][] => {
    // The problems are older than the numbers of the acknowledgement, which another tab may have stored.
    if (Date.parse(acknowledgement.countedAt) >= readAt) return [[name, acknowledgement]]
    const problem = problems.find((candidate) => candidate.name === name)
    const valid = problem && withCurrentExtent(acknowledgement, problem, readAt)
    return valid ? [[name, valid]] : []
  })
  const isSame = after.length === entries.length && after.every(([name, acknowledgement]) => before[name] === acknowledgement)
  return isSame ? before : Object.fromEntries(after)
}

/** The acknowledgement with the extent of the problem; undefined if the problem affects more objects. */
function withCurrentExtent(acknowledgement: Acknowledgement, problem: CountedProblem, readAt: number): Acknowledgement | undefined {
  const current = acknowledge(problem, Date.parse(acknowledgement.at), readAt)
  // The response lists only the most affected clusters: an absent one may have had objects.
  const listsAll = sum(acknowledgement.clusters) === acknowledgement.total
  const hadInCluster = (cluster: string) => acknowledgement.clusters[cluster] ?? (listsAll ? 0 : Infinity)
  const isWorse = current.total > acknowledgement.total || Object.entries(current.clusters).some(([cluster, count]) => count > hadInCluster(cluster))
  if (isWorse) return undefined
  const isSame = current.total === acknowledgement.total && Object.entries(acknowledgement.clusters).every(([cluster, count]) => current.clusters[cluster] === count)
  return isSame ? acknowledgement : current
}

const sum = (counts: Record<string, number>) => Object.values(counts).reduce((all, count) => all + count, 0)

/** Problems in their order, the acknowledged ones at the end. */
export function acknowledgedLast<T extends { name: ProblemName }>(problems: readonly T[], acknowledgements: Acknowledgements): T[] {
  const isAcknowledged = ({ name }: T) => acknowledgements[name] !== undefined
  return [...problems.filter((problem) => !isAcknowledged(problem)), ...problems.filter(isAcknowledged)]
}
