import { Link } from 'wouter'
import { clusterAddress, searchAddress } from '../../api/address'
import { clusterFacts, RESOURCES, type ClusterFacts, type Resource, type Room } from '../../api/clusters'
import { isCordoned } from '../../api/karmada'
import { problemsOf } from '../../api/problems'
import type { ClusterStatus, FacetValue, FleetStatus } from '../../api/types'
import { useFleet } from '../../api/useFleet'
import { QueryResult, usePolledQuery } from '../../parts/polledQuery'
import { Bar } from '../../parts/Bar'
import { ClusterName } from '../../parts/ClusterName'
import { number } from '../../parts/format'
import { Pill } from '../../parts/Pill'
import { readable } from '../../api/quantity'
import { toneOfReadiness } from '../../parts/status'
import { Table } from '../../parts/Table'
import { useTextOf } from '../../text'
import { fleetText } from '../../text/fleet'
import { Heard } from './Heard'

/** Number of clusters listed with a problem. */
const WORST = 3

export function Overview() {
  const t = useTextOf(fleetText)
  const { fleet, problem } = useFleet()
  const { data: clusters = new Map<string, ClusterFacts>(), error, isPending } = usePolledQuery(['clusters'], clusterFacts)
  // The index does not return objects that are hidden from the user.
  const untold = error !== null || (!isPending && clusters.size === 0 && (fleet?.clusters.length ?? 0) > 0)
  return (
    <>
      <h1>{t.fleet}</h1>
      {problem && <p role="alert">{t.interrupted(problem)}</p>}
      {fleet && <Totals known={fleet.clusters} clusters={[...clusters.values()]} search={fleet.search} />}
      {untold && <p className="notice">{t.noCapacity}</p>}
      <Problems />
      <h2>{t.clusters}</h2>
      {fleet && <Clusters known={fleet.clusters} clusters={clusters} />}
    </>
  )
}

function Totals({ known, clusters, search }: { known: ClusterStatus[]; clusters: ClusterFacts[]; search: FleetStatus['search'] }) {
  const t = useTextOf(fleetText)
  const sum = (resource: Resource) => {
    const rooms = clusters.map(({ room }) => room[resource]).filter((one) => one !== undefined)
    return { used: rooms.reduce((all, one) => all + one.used, 0), whole: rooms.reduce((all, one) => all + one.whole, 0) }
  }
  const nodes = known.map((cluster) => cluster.nodes ?? { total: 0, ready: 0 })
  const bars = ([['cpu', t.cpu], ['memory', t.memory], ['pods', t.pods]] as const).map(([resource, label]) => ({ resource, label, ...sum(resource) }))
  return (
    <section className="totals" aria-label={t.summary}>
      <p>
        <strong>{t.ready(known.filter(({ ready }) => ready === 'True').length, known.length)}</strong>
        {t.nodesReady(nodes.reduce((all, one) => all + one.ready, 0), nodes.reduce((all, one) => all + one.total, 0))}
      </p>
      {bars
        .filter(({ whole }) => whole > 0)
        .map(({ resource, label, used, whole }) => (
          <p key={resource}>
            {label}
            <Bar label={label} used={used} whole={whole} text={t.of(readable(resource, used), readable(resource, whole))} />
          </p>
        ))}
      {search && <p data-search={search.backend}>{t.searchedBy(search.backend, search.behind)}</p>}
    </section>
  )
}

function Problems() {
  const t = useTextOf(fleetText)
  const counts = usePolledQuery(['problems'], problemsOf, 10_000)
  return (
    <>
      <h2>{t.problems}</h2>
      <QueryResult of={counts}>
        {(there) => {
          if (there.length === 0) return <p className="empty">{t.noProblems}</p>
          return (
            <Table label={t.problems} heads={t.problemHeads}>
              {there.map(({ name, q, found }) => (
                <tr key={name} data-problem={name}>
                  <th scope="row">
                    <Link href={searchAddress({ q })}>{t.problemNames[name]}</Link>
                  </th>
                  <td className="number">{number(found.total)}</td>
                  <td>
                    <Where q={q} values={found.facets.cluster ?? []} />
                  </td>
                </tr>
              ))}
            </Table>
          )
        }}
      </QueryResult>
    </>
  )
}

function Where({ q, values }: { q: string; values: FacetValue[] }) {
  return values.slice(0, WORST).map(({ value, count }) => (
    <span key={value} className="chip">
      <Link href={searchAddress({ q: `${q} cluster:${value}` })}>
        <ClusterName name={value} /> {count}
      </Link>
    </span>
  ))
}

function Clusters({ known, clusters }: { known: ClusterStatus[]; clusters: Map<string, ClusterFacts> }) {
  const t = useTextOf(fleetText)
  return (
    <Table label={t.clusters} heads={t.clusterHeads}>
      {known.map((status) => (
        <ClusterRow key={status.name} status={status} cluster={clusters.get(status.name)} />
      ))}
    </Table>
  )
}

function ClusterRow({ status, cluster }: { status: ClusterStatus; cluster: ClusterFacts | undefined }) {
  const t = useTextOf(fleetText)
  const taints = cluster?.taints ?? []
  return (
    <tr data-cluster={status.name}>
      <th scope="row">
        <Link href={clusterAddress(status.name)}>
          <ClusterName name={status.name} />
        </Link>
      </th>
      <td>
        <Pill state={status.ready} tone={toneOfReadiness(status.ready)} text={t.readyWords[status.ready] ?? status.ready} title={status.message} />
        {status.ready !== 'True' && status.message && <small> {status.message}</small>}
      </td>
      <td>{status.version}</td>
      <td>{status.mode}</td>
      <td>{[status.provider, status.region, ...(status.zones ?? [])].filter(Boolean).join(' · ')}</td>
      <td className="number">{status.nodes ? `${status.nodes.ready}/${status.nodes.total}` : ''}</td>
      {RESOURCES.map((resource) => (
        <td key={resource}>
          <RoomBar label={`${t[resource]}, ${status.name}`} of={cluster?.room[resource]} resource={resource} />
        </td>
      ))}
      <td className="number">{number(status.objects)}</td>
      <td>
        {cluster?.leaving && <span className="chip">{t.leaving}</span>}
        {isCordoned(taints) && <span className="chip">{t.cordoned}</span>}
        {taints.filter((taint) => !isCordoned([taint])).map(({ key, effect }) => (
          <span key={`${key}:${effect}`} className="chip">
            {key}:{effect}
          </span>
        ))}
      </td>
      <td>
        <Heard seconds={status.ageSeconds} />
      </td>
    </tr>
  )
}

function RoomBar({ label, of, resource }: { label: string; of: Room | undefined; resource: Resource }) {
  const t = useTextOf(fleetText)
  if (!of) return null
  return <Bar label={label} used={of.used} whole={of.whole} text={t.of(readable(resource, of.used), readable(resource, of.whole))} />
}
