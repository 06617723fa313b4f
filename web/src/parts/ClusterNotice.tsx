import { useClusterNotes } from '../api/clusterNotes'
import { useText } from '../text'
import { ClusterName } from './ClusterName'

/** The warning and the read-only mark that administrators have set on a cluster, shown at the top of its pages. */
export function ClusterNotice({ cluster }: { cluster: string }) {
  const t = useText()
  const notes = useClusterNotes(cluster)
  if (!notes || (notes.warning === undefined && !notes.isReadOnly)) return null
  return (
    <p role="note" className="past">
      <ClusterName name={cluster} />: {notes.warning} {notes.isReadOnly && t.readOnlyCluster}
    </p>
  )
}
