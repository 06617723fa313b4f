import { ClusterLink } from '../../parts/ClusterLink'
import { Pill } from '../../parts/Pill'
import type { Node } from './layout'

/** Table cells of a related object: its kind, cluster and status. */
export function NodeCells({ node }: { node: Node }) {
  return (
    <>
      <td>{node.kind}</td>
      <td>
        <ClusterLink name={node.cluster} />
      </td>
      <td>
        <Pill state={node.status} /> {node.ready}
      </td>
    </>
  )
}
