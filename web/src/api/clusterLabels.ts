// Labels of the fleet's clusters, from the index.
import { CLUSTER_QUERY, readClusterHits } from './clusters'
import { countObjects } from './kube'
import type { Hit } from './types'

/** The most frequent label keys of the clusters that the user may list, sorted by name. */
export async function readClusterLabelKeys(signal: AbortSignal): Promise<string[]> {
  const { facets } = await countObjects(CLUSTER_QUERY, ['label'], signal)
  return (facets.label ?? []).map(({ value }) => value).sort()
}

/** Values of a label by cluster. Clusters without the label are absent. */
export async function readClusterLabels(key: string, signal: AbortSignal): Promise<ReadonlyMap<string, string>> {
  const column = labelColumn(key)
  return labelValues(await readClusterHits([column], signal), column)
}

const labelColumn = (key: string) => `label:${key}`

export function labelValues(hits: readonly Pick<Hit, 'name' | 'columns'>[], column: string): ReadonlyMap<string, string> {
  return new Map(hits.flatMap(({ name, columns }): [string, string][] => (columns?.[column] === undefined ? [] : [[name, columns[column]]])))
}
