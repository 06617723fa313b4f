import { Link } from 'wouter'
import { searchAddress } from '../../api/address'
import { readClusterSummaries, type ClusterSummary, type Resource } from '../../api/clusters'
import { readProblems } from '../../api/problems'
import type { ClusterStatus, FacetValue, FleetStatus } from '../../api/types'
import { useFleet } from '../../api/useFleet'
import { QueryResult, usePolledQuery } from '../../parts/polledQuery'
import { Bar } from '../../parts/Bar'
import { ClusterName } from '../../parts/ClusterName'
import { formatNumber } from '../../parts/format'
import { formatQuantity } from '../../api/quantity'
import { SkippedClusters } from '../../parts/SkippedClusters'
import { Table } from '../../parts/Table'
import { useTextOf } from '../../text'
import { fleetText } from '../../text/fleet'
import { ClusterTable } from './ClusterTable'

/** Maximum number of clusters listed with a problem. */
const MAX_CLUSTERS_PER_PROBLEM = 3

export function Overview() {
  const t = useTextOf(fleetText)
  const { fleet, errorMessage } = useFleet()
  const { data: clusters = new Map<string, ClusterSummary>(), error, isPending } = usePolledQuery(['clusters'], readClusterSummaries)
  // A search does not return Clusters that the user must not read.
  const isCapacityHidden = error !== null || (!isPending && clusters.size === 0 && (fleet?.clusters.length ?? 0) > 0)
  return (
    <>
      <h1>{t.fleet}</h1>
      {errorMessage && <p role="alert">{t.interrupted(errorMessage)}</p>}
      {fleet && <Totals statuses={fleet.clusters} clusters={[...clusters.values()]} search={fleet.search} />}
      {isCapacityHidden && <p className="notice">{t.noCapacity}</p>}
      <Problems />
      <h2>{t.clusters}</h2>
      {fleet && <ClusterTable statuses={fleet.clusters} clusters={clusters} />}
    </>
  )
}

function Totals({ statuses, clusters, search }: { statuses: ClusterStatus[]; clusters: ClusterSummary[]; search: FleetStatus['search'] }) {
  const t = useTextOf(fleetText)
  const sum = (resource: Resource) => {
    const usages = clusters.map(({ usage }) => usage[resource]).filter((usage) => usage !== undefined)
    return { used: usages.reduce((total, usage) => total + usage.used, 0), total: usages.reduce((total, usage) => total + usage.total, 0) }
  }
  const nodes = statuses.flatMap((cluster) => cluster.nodes ?? [])
  const bars = ([['cpu', t.cpu], ['memory', t.memory], ['pods', t.pods]] as const).map(([resource, label]) => ({ resource, label, ...sum(resource) }))
  return (
    <section className="totals" aria-label={t.summary}>
      <p>
        <strong>{t.ready(statuses.filter(({ ready }) => ready === 'True').length, statuses.length)}</strong>
        {nodes.length > 0 && t.nodesReady(nodes.reduce((total, count) => total + count.ready, 0), nodes.reduce((total, count) => total + count.total, 0))}
      </p>
      {bars
        .filter(({ total }) => total > 0)
        .map(({ resource, label, used, total }) => (
          <p key={resource}>
            {label}
            <Bar label={label} used={used} total={total} text={t.usedOf(formatQuantity(resource, used), formatQuantity(resource, total))} />
          </p>
        ))}
      {search && <p data-search={search.backend}>{t.searchedBy(search.backend, search.behind)}</p>}
    </section>
  )
}

function Problems() {
  const t = useTextOf(fleetText)
  const counts = usePolledQuery(['problems'], readProblems, 10_000)
  return (
    <>
      <h2>{t.problems}</h2>
      <QueryResult query={counts}>
        {({ problems, skipped }) => {
          if (problems.length === 0) return skipped.length > 0 ? <SkippedClusters skipped={skipped} /> : <p className="empty">{t.noProblems}</p>
          return (
            <>
              <SkippedClusters skipped={skipped} />
              <Table label={t.problems} headers={t.problemHeaders}>
                {problems.map(({ name, q, result }) => (
                  <tr key={name} data-problem={name}>
                    <th scope="row">
                      <Link href={searchAddress({ q })}>{t.problemNames[name]}</Link>
                    </th>
                    <td className="number">{formatNumber(result.total)}</td>
                    <td>
                      <TopClusters q={q} values={result.facets.cluster ?? []} />
                    </td>
                  </tr>
                ))}
              </Table>
            </>
          )
        }}
      </QueryResult>
    </>
  )
}

function TopClusters({ q, values }: { q: string; values: FacetValue[] }) {
  return values.slice(0, MAX_CLUSTERS_PER_PROBLEM).map(({ value, count }) => (
    <span key={value} className="chip">
      <Link href={searchAddress({ q: `${q} cluster:${value}` })}>
        <ClusterName name={value} /> {count}
      </Link>
    </span>
  ))
}
