import { useQuery } from '@tanstack/react-query'
import type { ReactNode } from 'react'
import { Link } from 'wouter'
import { objectAddress } from '../../api/address'
import { getJson, viewErrorOf, type ObjectRef } from '../../api/client'
import { API } from '../../api/searchApi'
import { Table } from '../../parts/Table'
import { useTextOf } from '../../text'
import { objectText as texts } from '../../text/object'
import { toTableRows, type BlastRadius, type Direction } from './blastRadius'
import { describeError } from './describeError'
import { NodeCells } from './NodeCells'
import { objectParameters } from './objects'

interface Properties {
  objectRef: ObjectRef
  direction: Direction
  /** Draws the objects as a tree or a graph; undefined shows a table. */
  draw: ((blastRadius: BlastRadius) => ReactNode) | undefined
}

/** Objects in all clusters that depend on an object, or that it depends on, as a table, a tree or a graph. */
export function Dependents({ objectRef, direction, draw }: Properties) {
  const t = useTextOf(texts)
  const blastRadius = useQuery({
    queryKey: ['blastradius', objectRef, direction],
    queryFn: ({ signal }) => getJson<BlastRadius>(`${API}/blastradius?${objectParameters(objectRef)}&dependencies=${direction === 'dependencies'}`, signal),
    refetchInterval: 30_000,
  })
  const rows = blastRadius.data ? toTableRows(blastRadius.data) : []
  return (
    <>
      {viewErrorOf(blastRadius.error) !== undefined && <p role="alert">{describeError(blastRadius.error, objectRef.cluster, t)}</p>}
      {blastRadius.data && rows.length === 0 && <p className="empty">{t.nothingDepends[direction]}</p>}
      {blastRadius.data?.notices.map((notice) => (
        <p className="notice" key={notice}>
          {notice}
        </p>
      ))}
      {blastRadius.data && rows.length > 0 && draw?.(blastRadius.data)}
      {rows.length > 0 && !draw && (
        <Table caption label={t.directions[direction]} headers={t.dependentColumns}>
          {rows.map(({ node, distance, type, via, from }) => (
            <tr key={`${node.cluster} ${node.uid}`}>
              <th scope="row">
                <Link href={objectAddress(node, 'related')}>{node.name}</Link>
              </th>
              <NodeCells node={node} />
              <td>{distance}</td>
              <td title={via}>
                {type}{' '}
                {from && (
                  <Link href={objectAddress(from, 'related')}>
                    {from.kind} {from.name}
                  </Link>
                )}
              </td>
            </tr>
          ))}
        </Table>
      )}
    </>
  )
}
