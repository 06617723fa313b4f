import type { SkippedCluster } from '../api/types'
import { useText } from '../text'
import { ClusterLink } from './ClusterLink'
import { skippedText } from './skipped'

interface SkippedClustersProps {
  skipped: readonly SkippedCluster[]
  /** What the clusters are missing from; default: the result is not complete. */
  label?: string
  /** Shows the label without any cluster, if data is missing for another reason. */
  isIncomplete?: boolean
}

/** Notice of the clusters whose data is missing or outdated, with the reasons; nothing if there are none. */
export function SkippedClusters({ skipped, label, isIncomplete = false }: SkippedClustersProps) {
  const t = useText()
  if (skipped.length === 0 && !isIncomplete) return null
  return (
    <p className="bad" role="status">
      {label ?? t.notComplete}{' '}
      {skipped.map((entry) => (
        <span key={entry.cluster} className="chip">
          <ClusterLink name={entry.cluster} /> {skippedText(entry, t)}
        </span>
      ))}
    </p>
  )
}
