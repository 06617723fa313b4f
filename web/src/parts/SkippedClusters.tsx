import type { SkippedCluster } from '../api/types'
import { useText } from '../text'
import { ClusterName } from './ClusterName'
import { skippedText } from './skipped'

/** Clusters whose data is missing or outdated, with the reasons. */
export function SkippedClusters({ skipped }: { skipped: readonly SkippedCluster[] }) {
  const t = useText()
  return skipped.map((entry) => (
    <span key={entry.cluster} className="chip">
      <ClusterName name={entry.cluster} /> {skippedText(entry, t)}
    </span>
  ))
}
