// Drift of a template in several clusters at once.
import { useQueries } from '@tanstack/react-query'
import { Link } from 'wouter'
import { computeDrift } from '../../api/drift'
import { getObject, withTimeout } from '../../api/kube'
import type { Template } from '../../api/propagation'
import type { KubeObject } from '../../api/types'
import { describeError } from '../../parts/polledQuery'
import { ClusterName } from '../../parts/ClusterName'
import { Value } from '../../parts/Differences'
import { Pill } from '../../parts/Pill'
import { Table } from '../../parts/Table'
import { useTextOf } from '../../text'
import { queryText } from '../../text/query'
import { propagationText } from '../../text/propagation'
import { driftRows } from './driftMatrix'

/** Maximum number of clusters that are compared, each with a request to the member. */
const MAX_CLUSTERS = 10
const INTERVAL_MS = 10_000

interface DriftMatrixProps {
  template: Template
  /** Desired manifests by cluster. */
  desired: readonly { name: string; manifest: KubeObject }[]
  /** The address of the drift in one cluster. */
  hrefOf: (cluster: string) => string
}

export function DriftMatrix({ template, desired, hrefOf }: DriftMatrixProps) {
  const t = useTextOf(propagationText)
  const commonText = useTextOf(queryText)
  const compared = desired.slice(0, MAX_CLUSTERS)
  const live = useQueries({
    queries: compared.map(({ name }) => {
      const ref = { cluster: name, ...template }
      const queryFn = ({ signal }: { signal: AbortSignal }) => withTimeout((timeoutSignal) => getObject<KubeObject>(ref, timeoutSignal), signal)
      return { queryKey: ['live', ref], queryFn, refetchInterval: INTERVAL_MS, retry: 0 }
    }),
  })
  const columns = compared.map(({ name, manifest }, nth) => {
    const object = live[nth]?.data
    return { cluster: name, error: live[nth]?.error, changed: object && computeDrift(manifest, object).changed }
  })
  return (
    <>
      <h2>{t.driftOfAll}</h2>
      <p className="notice">{t.fromPlan}</p>
      <Table
        label={t.driftOfAll}
        headers={[
          t.driftHeaders[0],
          ...columns.map(({ cluster }) => (
            <Link key={cluster} href={hrefOf(cluster)} replace>
              <ClusterName name={cluster} />
            </Link>
          )),
        ]}
      >
        <tr>
          <th scope="row">{t.driftState}</th>
          {columns.map(({ cluster, error, changed }) => (
            <td key={cluster} data-drift={cluster}>
              {changed ? (
                <Pill state={changed.length === 0 ? t.same : t.fieldsDiffer(changed.length)} tone={changed.length === 0 ? 'good' : 'bad'} />
              ) : error ? (
                <span className="bad">{describeError(error, commonText, cluster)}</span>
              ) : (
                commonText.loading
              )}
            </td>
          ))}
        </tr>
        {driftRows(columns.map(({ changed }) => changed)).map(({ path, differences }) => (
          <tr key={path} data-path={path}>
            <th scope="row">
              <code>{path}</code>
            </th>
            {differences.map((difference, nth) => (
              <td key={columns[nth]?.cluster}>
                {difference ? (
                  <>
                    <Value value={difference.desired} /> → <Value value={difference.live} />
                  </>
                ) : (
                  t.no
                )}
              </td>
            ))}
          </tr>
        ))}
      </Table>
      {desired.length > compared.length && <p className="notice">{t.notCompared(desired.length - compared.length)}</p>}
    </>
  )
}
