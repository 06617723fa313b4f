// Clusters that a policy names and the fleet does not have.
import type { Policy } from './karmada'

/** Names of clusters that a policy selects, each once, in the order of the policy. */
export function clustersNamed({ spec: { placement, overrideRules, targetClusters } }: Pick<Policy, 'spec'>): string[] {
  const affinities = [placement?.clusterAffinity, ...(placement?.clusterAffinities ?? []), ...(overrideRules ?? []).map(({ targetCluster }) => targetCluster), targetClusters as { clusterNames?: string[] } | undefined]
  return [...new Set(affinities.flatMap((affinity) => affinity?.clusterNames ?? []))]
}

/** Those that do not exist. Without the list of all clusters, nothing is known to be missing. */
export function unknownClusters(policy: Pick<Policy, 'spec'>, known: ReadonlySet<string> | undefined): string[] {
  return known === undefined || known.size === 0 ? [] : clustersNamed(policy).filter((name) => !known.has(name))
}
