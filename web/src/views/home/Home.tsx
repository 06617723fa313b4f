// "Is my fleet OK?": a verdict, what needs attention, clusters, and what changes.
import { Link } from 'wouter'
import { clusterAddress, objectAddress, searchAddress } from '../../api/address'
import { getJson } from '../../api/client'
import { clusterFacts, type ClusterFacts, type Room } from '../../api/clusters'
import { pastCounts, problemsOf, trendOf, type Problem } from '../../api/problems'
import { readable } from '../../api/quantity'
import type { ClusterStatus, FleetStatus, Hit } from '../../api/types'
import { useFleet } from '../../api/useFleet'
import { API } from '../../api/useSearch'
import { KindIcon } from '../../icons/Icon'
import { QueryProvider, usePolledQuery } from '../../parts/polledQuery'
import { Bar } from '../../parts/Bar'
import { ClusterName } from '../../parts/ClusterName'
import { number, since } from '../../parts/format'
import { Pill } from '../../parts/Pill'
import { Skeleton } from '../../parts/Skeleton'
import { Spark } from '../../parts/Spark'
import { GLYPHS, toneOfReadiness } from '../../parts/status'
import { useText, useTextOf } from '../../text'
import { fleetText } from '../../text/fleet'
import { homeText } from '../../text/home'
import { Heard } from '../fleet/Heard'
import { shownClusters, fleetHealthOf } from './fleetHealth'
import './home.css'

/** Cluster cards; with more clusters, the fleet's page has all of them. */
const MOST_CLUSTERS = 12
/** Recent changes, and rollouts in progress. */
const MOST_CHANGES = 8
const CHANGES = 'kind:workload changed:<1h sort:-changed'
const ROLLOUTS = 'kind:deployment,statefulset,daemonset reason:ReplicaSetUpdated,NewReplicaSetCreated,FoundNewReplicaSet sort:-changed'
const TREND_EVERY = 300_000

export function Home() {
  return (
    <QueryProvider>
      <Shown />
    </QueryProvider>
  )
}

function Shown() {
  const t = useTextOf(fleetText)
  const { fleet, problem } = useFleet()
  const problems = usePolledQuery(['problems'], problemsOf, 10_000)
  if (!fleet) return problem ? <p role="alert">{t.interrupted(problem)}</p> : <Skeleton />
  return (
    <div className="home">
      {problem && <p role="alert">{t.interrupted(problem)}</p>}
      <Answered clusters={fleet.clusters} problems={problems.data} />
      <Attention problems={problems.data ?? []} />
      <Clusters clusters={fleet.clusters} />
      <div className="pair">
        <Recent of="changes" q={CHANGES} />
        <Recent of="rollouts" q={ROLLOUTS} />
      </div>
      <Counts fleet={fleet} />
    </div>
  )
}

function Answered({ clusters, problems }: { clusters: ClusterStatus[]; problems: Problem[] | undefined }) {
  const t = useTextOf(homeText)
  if (!problems) return <Skeleton />
  const { tone, notReady } = fleetHealthOf(clusters, problems)
  const text =
    clusters.length === 0 ? t.noClusters : notReady > 0 ? t.notReady(notReady, clusters.length) : problems.length > 0 ? t.needAttention(problems.length) : t.allWell(clusters.length)
  return (
    <p className={`verdict ${tone}`} role="status">
      <i aria-hidden="true">{GLYPHS[tone]}</i> {text}
    </p>
  )
}

function Attention({ problems }: { problems: Problem[] }) {
  const t = useTextOf(homeText)
  const names = useTextOf(fleetText).problemNames
  if (problems.length === 0) return null
  return (
    <section aria-label={t.attention}>
      <h2>{t.attention}</h2>
      <div className="cards attention">
        {problems.map((problem) => (
          <article key={problem.name} className="card" data-problem={problem.name}>
            <h3>
              <Link href={searchAddress({ q: problem.q })}>{names[problem.name]}</Link>
            </h3>
            <p>
              <Pill state={number(problem.found.total)} tone={problem.tone} />
              <Trend problem={problem} />
            </p>
            <p>
              {(problem.found.facets.cluster ?? []).slice(0, 3).map(({ value, count }) => (
                <Link key={value} className="chip" href={searchAddress({ q: `${problem.q} cluster:${value}` })}>
                  <ClusterName name={value} /> {count}
                </Link>
              ))}
            </p>
          </article>
        ))}
      </div>
    </section>
  )
}

/** The number over the last hour. */
function Trend({ problem: { name, q, found } }: { problem: Problem }) {
  const t = useTextOf(homeText)
  const past = usePolledQuery(['past counts', name], (signal) => pastCounts(name, q, signal), TREND_EVERY)
  if (!past.data) return null
  const values = trendOf(name, past.data, found.total)
  return <Spark values={values} label={t.trend(values.map(number).join(', '))} />
}

function Clusters({ clusters }: { clusters: ClusterStatus[] }) {
  const t = useTextOf(homeText)
  const facts = usePolledQuery(['clusters'], clusterFacts, 10_000)
  if (clusters.length === 0) {
    return (
      <p className="empty box">
        {t.joinFirst} <Link href="/fleet/join">{t.join}</Link>
      </p>
    )
  }
  const shown = shownClusters(clusters, MOST_CLUSTERS)
  return (
    <section aria-label={t.clusters}>
      <h2>
        <Link href="/fleet">{t.clusters}</Link>
      </h2>
      <div className="cards">
        {shown.map((status) => (
          <ClusterCard key={status.name} status={status} facts={facts.data?.get(status.name)} />
        ))}
      </div>
      {shown.length < clusters.length && (
        <p>
          <Link href="/fleet">{t.allClusters(clusters.length)}</Link>
        </p>
      )}
    </section>
  )
}

function ClusterCard({ status, facts }: { status: ClusterStatus; facts: ClusterFacts | undefined }) {
  const t = useTextOf(fleetText)
  return (
    <article className="card" data-cluster={status.name}>
      <h3>
        <Link href={clusterAddress(status.name)}>
          <ClusterName name={status.name} />
        </Link>{' '}
        <Pill state={status.ready} tone={toneOfReadiness(status.ready)} text={t.readyWords[status.ready] ?? status.ready} title={status.message} />
      </h3>
      {status.ready !== 'True' && status.message && <p className="bad">{status.message}</p>}
      <p className="why">
        {[status.version, status.mode, status.provider, status.region].filter(Boolean).join(' · ')} · <Heard seconds={status.ageSeconds} />
      </p>
      <Used label={`${t.cpu}, ${status.name}`} resource="cpu" room={facts?.room.cpu} />
      <Used label={`${t.memory}, ${status.name}`} resource="memory" room={facts?.room.memory} />
      <p>
        {status.nodes && <>{t.nodesReady(status.nodes.ready, status.nodes.total)} · </>}
        <Link href={searchAddress({ q: `kind:pod cluster:${status.name}` })}>
          {t.pods} {number(status.pods)}
        </Link>
      </p>
    </article>
  )
}

function Used({ label, resource, room }: { label: string; resource: 'cpu' | 'memory'; room: Room | undefined }) {
  const t = useTextOf(fleetText)
  if (!room) return null
  return <Bar label={label} used={room.used} whole={room.whole} text={`${t[resource]}: ${t.of(readable(resource, room.used), readable(resource, room.whole))}`} />
}

function Recent({ of, q }: { of: 'changes' | 'rollouts'; q: string }) {
  const t = useTextOf(homeText)
  const found = usePolledQuery(['recent', q], (signal) => getJson<{ hits: Hit[] }>(`${API}/query?limit=${MOST_CHANGES}&facets=&q=${encodeURIComponent(q)}`, signal), 10_000)
  const hits = found.data?.hits ?? []
  return (
    <section aria-label={t[of]}>
      <h2>
        <Link href={searchAddress({ q })}>{t[of]}</Link>
      </h2>
      {found.data && hits.length === 0 && <p className="empty">{t.none[of]}</p>}
      <ul className="plain">
        {hits.map((hit) => (
          <li key={`${hit.cluster}/${hit.kind}/${hit.namespace}/${hit.name}`}>
            <KindIcon kind={hit.kind} /> <Link href={objectAddress(hit)}>{`${hit.namespace ? `${hit.namespace}/` : ''}${hit.name}`}</Link> <ClusterName name={hit.cluster} /> {hit.ready}{' '}
            <Pill state={hit.status} />{' '}
            <span className="why" title={hit.created}>
              {t.age(since(hit.created))}
            </span>
          </li>
        ))}
      </ul>
    </section>
  )
}

/** Counts of the fleet, each a link to its query. */
function Counts({ fleet }: { fleet: FleetStatus }) {
  const t = useText()
  return (
    <section className="counts" aria-label={t.counts}>
      {fleet.counts.map((tile) => (
        <Link key={tile.label} href={searchAddress({ q: tile.query })}>
          <strong>{tile.count.toLocaleString(t.locale)}</strong> {t.tiles[tile.label] ?? tile.label}
        </Link>
      ))}
    </section>
  )
}
