import { useQuery } from '@tanstack/react-query'
import { Link } from 'wouter'
import { objectAddress } from '../../api/address'
import { getJson, viewErrorOf, type ObjectRef } from '../../api/client'
import { API } from '../../api/useSearch'
import { ClusterName } from '../../parts/ClusterName'
import { Pill } from '../../parts/Pill'
import { Table } from '../../parts/Table'
import { useTextOf } from '../../text'
import { objectText as texts } from '../../text/object'
import { reachedRows, type BlastRadius, type Side } from './reached'
import { describeError } from './explain'
import { objectParameters } from './objects'

/** Objects in all clusters that depend on an object, or that it depends on. */
export function Dependents({ refTo, side }: { refTo: ObjectRef; side: Side }) {
  const t = useTextOf(texts)
  const blastRadius = useQuery({
    queryKey: ['blastradius', refTo, side],
    queryFn: ({ signal }) => getJson<BlastRadius>(`${API}/blastradius?${objectParameters(refTo)}&dependencies=${side === 'dependencies'}`, signal),
    refetchInterval: 30_000,
  })
  const rows = blastRadius.data ? reachedRows(blastRadius.data) : []
  return (
    <>
      {viewErrorOf(blastRadius.error) !== undefined && <p role="alert">{describeError(blastRadius.error, refTo.cluster, t)}</p>}
      {blastRadius.data && rows.length === 0 && <p className="empty">{t.nothingDepends[side]}</p>}
      {blastRadius.data?.notices.map((notice) => (
        <p className="notice" key={notice}>
          {notice}
        </p>
      ))}
      {rows.length > 0 && (
        <Table caption label={t.sides[side]} headers={t.dependentColumns}>
          {rows.map(({ node, distance, type, via, from }) => (
            <tr key={`${node.cluster} ${node.uid}`}>
              <th scope="row">
                <Link href={objectAddress(node, 'related')}>{node.name}</Link>
              </th>
              <td>{node.kind}</td>
              <td>
                <ClusterName name={node.cluster} />
              </td>
              <td>
                <Pill state={node.status} /> {node.ready}
              </td>
              <td>{distance}</td>
              <td title={via}>
                {type} {from}
              </td>
            </tr>
          ))}
        </Table>
      )}
    </>
  )
}
