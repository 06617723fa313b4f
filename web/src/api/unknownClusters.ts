// Clusters that a policy selects by name and that the fleet does not have.
import type { Policy } from './karmada'

/** Names of clusters that a policy selects, each once, in the order of the policy. */
export function selectedClusterNames({ spec: { placement, overrideRules, targetClusters } }: Pick<Policy, 'spec'>): string[] {
  const affinities = [placement?.clusterAffinity, ...(placement?.clusterAffinities ?? []), ...(overrideRules ?? []).map(({ targetCluster }) => targetCluster), targetClusters as { clusterNames?: string[] } | undefined]
  return [...new Set(affinities.flatMap((affinity) => affinity?.clusterNames ?? []))]
}

/** Selected clusters that do not exist; none if the list of existing clusters is not available. */
export function unknownClusters(policy: Pick<Policy, 'spec'>, existing: ReadonlySet<string> | undefined): string[] {
  return existing === undefined || existing.size === 0 ? [] : selectedClusterNames(policy).filter((name) => !existing.has(name))
}
