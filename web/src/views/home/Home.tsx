// Home page: the fleet's health, problems, clusters, and recent changes.
import { useEffect, type MouseEvent } from 'react'
import { Link } from 'wouter'
import { objectAddress, searchAddress } from '../../api/address'
import { getJson } from '../../api/client'
import { readClusterSummaries, type ClusterSummary, type ResourceUsage } from '../../api/clusters'
import { readPastCounts, readProblems, trendOf, type Problem } from '../../api/problems'
import { formatQuantity } from '../../api/quantity'
import type { ClusterStatus, FleetStatus, Hit, SkippedCluster } from '../../api/types'
import { useFleet } from '../../api/useFleet'
import { API } from '../../api/searchApi'
import { KindIcon } from '../../icons/Icon'
import { QueryProvider, usePolledQuery } from '../../parts/polledQuery'
import { Bar } from '../../parts/Bar'
import { ClusterLink } from '../../parts/ClusterLink'
import { ClusterName } from '../../parts/ClusterName'
import { FavouriteCluster } from '../../parts/FavouriteCluster'
import { formatNumber, formatAgeSince } from '../../parts/format'
import { Pill } from '../../parts/Pill'
import { Skeleton } from '../../parts/Skeleton'
import { SkippedClusters } from '../../parts/SkippedClusters'
import { Spark } from '../../parts/Spark'
import { GLYPHS, toneOfReadiness } from '../../parts/status'
import { setAcknowledgements, usePrefs, type Acknowledgements } from '../../prefs'
import { useText, useTextOf } from '../../text'
import { fleetText } from '../../text/fleet'
import { homeText } from '../../text/home'
import { DataAge } from '../fleet/DataAge'
import { useSession } from '../SignIn'
import { acknowledge, acknowledgedLast, validAcknowledgements } from './acknowledgements'
import { clustersToShow, fleetHealthOf } from './fleetHealth'
import { MAX_ROLLOUT_CANDIDATES, ROLLOUT_CANDIDATES_QUERY, ROLLOUT_COLUMNS, rolloutOf, rolloutsQuery } from './rollouts'
import './home.css'

/** Maximum number of cluster cards; the fleet page shows all clusters. */
const MAX_CLUSTERS = 12
/** Maximum number of recent changes, and of rollouts. */
const MAX_CHANGES = 8
const CHANGES_QUERY = 'kind:workload changed:<1h sort:-changed'
const TREND_INTERVAL_MS = 300_000

export function Home() {
  return (
    <QueryProvider>
      <HomeContent />
    </QueryProvider>
  )
}

function HomeContent() {
  const t = useTextOf(fleetText)
  const { fleet, errorMessage } = useFleet()
  const report = usePolledQuery(['problems'], readProblems, 10_000)
  const problems = report.data?.problems
  const acknowledgements = useAcknowledgements(problems, report.dataUpdatedAt)
  if (!fleet) return errorMessage ? <p role="alert">{t.interrupted(errorMessage)}</p> : <Skeleton />
  return (
    <div className="home">
      {errorMessage && <p role="alert">{t.interrupted(errorMessage)}</p>}
      <Verdict clusters={fleet.clusters} problems={problems} skipped={report.data?.skipped ?? []} acknowledgements={acknowledgements} />
      <Attention problems={problems ?? []} acknowledgements={acknowledgements} />
      <Clusters clusters={fleet.clusters} />
      <div className="pair">
        <Changes />
        <Rollouts />
      </div>
      <Counts fleet={fleet} />
    </div>
  )
}

/** Valid acknowledgements of the user; those that have become invalid are removed. */
function useAcknowledgements(problems: Problem[] | undefined, readAt: number): Acknowledgements {
  const { user } = useSession()
  const stored = usePrefs().acknowledged[user] ?? NO_ACKNOWLEDGEMENTS
  const valid = problems ? validAcknowledgements(stored, problems, readAt) : stored
  useEffect(() => {
    if (valid !== stored) setAcknowledgements(user, valid)
  })
  return valid
}

const NO_ACKNOWLEDGEMENTS: Acknowledgements = {}

interface VerdictProps {
  clusters: ClusterStatus[]
  problems: Problem[] | undefined
  /** Clusters that may have further problems. */
  skipped: SkippedCluster[]
  acknowledgements: Acknowledgements
}

function Verdict({ clusters, problems, skipped, acknowledgements }: VerdictProps) {
  const t = useTextOf(homeText)
  if (!problems) return <Skeleton />
  const { tone, notReady } = fleetHealthOf(clusters, problems, skipped.length === 0)
  const unacknowledged = problems.filter(({ name }) => acknowledgements[name] === undefined).length
  const problemText = problems.length === 0 ? t.allReady(clusters.length) : unacknowledged > 0 ? t.needAttention(unacknowledged) : t.allAcknowledged(problems.length)
  const text = clusters.length === 0 ? t.noClusters : notReady > 0 ? t.notReady(notReady, clusters.length) : problemText
  return (
    <>
      <p className={`verdict ${tone}`} role="status">
        <i aria-hidden="true">{GLYPHS[tone]}</i> {text}
      </p>
      <SkippedClusters skipped={skipped} label={t.atLeast} />
    </>
  )
}

function Attention({ problems, acknowledgements }: { problems: Problem[]; acknowledgements: Acknowledgements }) {
  const t = useTextOf(homeText)
  if (problems.length === 0) return null
  return (
    <section aria-label={t.attention}>
      <h2>{t.attention}</h2>
      <div className="cards attention">
        {acknowledgedLast(problems, acknowledgements).map((problem) => (
          <ProblemCard key={problem.name} problem={problem} acknowledgements={acknowledgements} />
        ))}
      </div>
    </section>
  )
}

function ProblemCard({ problem, acknowledgements }: { problem: Problem; acknowledgements: Acknowledgements }) {
  const t = useTextOf(homeText)
  const name = useTextOf(fleetText).problemNames[problem.name]
  const { user } = useSession()
  const { [problem.name]: acknowledgement, ...others } = acknowledgements
  const action = acknowledgement ? t.undo : t.acknowledge
  const toggle = ({ currentTarget: button }: MouseEvent<HTMLButtonElement>) => {
    setAcknowledgements(user, acknowledgement ? others : { ...others, [problem.name]: acknowledge(problem, Date.now()) })
    // An element that moves to another place loses the focus.
    requestAnimationFrame(() => button.focus({ preventScroll: true }))
  }
  return (
    <article className={acknowledgement ? 'card acknowledged' : 'card'} data-problem={problem.name}>
      <h3>
        <Link href={searchAddress({ q: problem.q })}>{name}</Link>
      </h3>
      <p>
        <Pill state={formatNumber(problem.result.total)} tone={acknowledgement ? 'idle' : problem.tone} />
        <Trend problem={problem} />
      </p>
      <p>
        {(problem.result.facets.cluster ?? []).slice(0, 3).map(({ value, count }) => (
          <Link key={value} className="chip" href={searchAddress({ q: `${problem.q} cluster:${value}` })}>
            <ClusterName name={value} /> {count}
          </Link>
        ))}
      </p>
      <p className="acknowledge">
        {acknowledgement && t.acknowledged(formatAgeSince(acknowledgement.at))}
        <button type="button" aria-label={t.actionFor(action, name)} onClick={toggle}>
          {action}
        </button>
      </p>
    </article>
  )
}

/** Sparkline of a problem's count over the last hour. */
function Trend({ problem: { name, q, result } }: { problem: Problem }) {
  const t = useTextOf(homeText)
  const pastCounts = usePolledQuery(['past counts', name], (signal) => readPastCounts(name, q, signal), TREND_INTERVAL_MS)
  if (!pastCounts.data) return null
  const values = trendOf(name, pastCounts.data, result.total)
  return <Spark values={values} label={t.trend(values.map(formatNumber).join(', '))} />
}

function Clusters({ clusters }: { clusters: ClusterStatus[] }) {
  const t = useTextOf(homeText)
  const facts = usePolledQuery(['clusters'], readClusterSummaries, 10_000)
  const { favouriteClusters } = usePrefs()
  if (clusters.length === 0) {
    return (
      <p className="empty box">
        {t.noClustersYet} <Link href="/fleet/join">{t.join}</Link>
      </p>
    )
  }
  const shownStatuses = clustersToShow(clusters, MAX_CLUSTERS, favouriteClusters)
  return (
    <section aria-label={t.clusters}>
      <h2>
        <Link href="/fleet">{t.clusters}</Link>
      </h2>
      <div className="cards">
        {shownStatuses.map((status) => (
          <ClusterCard key={status.name} status={status} summary={facts.data?.get(status.name)} />
        ))}
      </div>
      {shownStatuses.length < clusters.length && (
        <p>
          <Link href="/fleet">{t.allClusters(clusters.length)}</Link>
        </p>
      )}
    </section>
  )
}

function ClusterCard({ status, summary }: { status: ClusterStatus; summary: ClusterSummary | undefined }) {
  const t = useTextOf(fleetText)
  return (
    <article className="card" data-cluster={status.name}>
      <h3>
        <ClusterLink name={status.name} /> <FavouriteCluster name={status.name} />{' '}
        <Pill state={status.ready} tone={toneOfReadiness(status.ready)} text={t.readyLabels[status.ready] ?? status.ready} title={status.message} />
      </h3>
      {status.ready !== 'True' && status.message && <p className="bad">{status.message}</p>}
      <p className="why">
        {[status.version, status.mode, status.provider, status.region].filter(Boolean).join(' · ')} · <DataAge seconds={status.ageSeconds} />
      </p>
      <UsageBar label={`${t.cpu}, ${status.name}`} resource="cpu" usage={summary?.usage.cpu} />
      <UsageBar label={`${t.memory}, ${status.name}`} resource="memory" usage={summary?.usage.memory} />
      <p>
        {status.nodes && <>{t.nodesReady(status.nodes.ready, status.nodes.total)} · </>}
        <Link href={searchAddress({ q: `kind:pod cluster:${status.name}` })}>
          {t.pods} {formatNumber(status.pods)}
        </Link>
      </p>
    </article>
  )
}

function UsageBar({ label, resource, usage }: { label: string; resource: 'cpu' | 'memory'; usage: ResourceUsage | undefined }) {
  const t = useTextOf(fleetText)
  if (!usage) return null
  return <Bar label={label} used={usage.used} total={usage.total} text={`${t[resource]}: ${t.usedOf(formatQuantity(resource, usage.used), formatQuantity(resource, usage.total))}`} />
}

/** Hits of a query with these columns; undefined until they are loaded. */
function useRecent(q: string, limit: number, columns: readonly string[]): Hit[] | undefined {
  const path = `${API}/query?limit=${limit}&facets=&columns=${encodeURIComponent(columns.join())}&q=${encodeURIComponent(q)}`
  return usePolledQuery(['recent', path], (signal) => getJson<{ hits: Hit[] }>(path, signal), 10_000).data?.hits
}

function Changes() {
  const hits = useRecent(CHANGES_QUERY, MAX_CHANGES, ['changed'])
  return <Recent kind="changes" q={CHANGES_QUERY} items={hits?.map((hit) => ({ hit }))} />
}

function Rollouts() {
  const t = useTextOf(homeText)
  const hits = useRecent(ROLLOUT_CANDIDATES_QUERY, MAX_ROLLOUT_CANDIDATES, ROLLOUT_COLUMNS)
  const rollouts = hits?.flatMap((hit) => rolloutOf(hit) ?? [])
  const shown = rollouts?.slice(0, MAX_CHANGES)
  return <Recent kind="rollouts" q={rollouts && rolloutsQuery(rollouts)} items={shown?.map(({ hit, updated, desired }) => ({ hit, progress: t.updated(updated, desired) }))} />
}

interface RecentProps {
  kind: 'changes' | 'rollouts'
  /** Query of the heading's link; undefined: the heading is no link. */
  q: string | undefined
  /** Undefined until they are loaded. */
  items: { hit: Hit; progress?: string }[] | undefined
}

function Recent({ kind, q, items }: RecentProps) {
  const t = useTextOf(homeText)
  return (
    <section aria-label={t[kind]}>
      <h2>
        {q === undefined ? t[kind] : <Link href={searchAddress({ q })}>{t[kind]}</Link>}
      </h2>
      {items?.length === 0 && <p className="empty">{t.none[kind]}</p>}
      <ul className="plain">
        {items?.map(({ hit, progress }) => (
          <li key={`${hit.cluster}/${hit.kind}/${hit.namespace}/${hit.name}`}>
            <KindIcon kind={hit.kind} apiVersion={hit.apiVersion} /> <Link href={objectAddress(hit)}>{`${hit.namespace ? `${hit.namespace}/` : ''}${hit.name}`}</Link> <ClusterLink name={hit.cluster} /> {hit.ready} {progress}{' '}
            <Pill state={hit.status} />{' '}
            <span className="why" title={hit.columns?.changed}>
              {t.changed(formatAgeSince(hit.columns?.changed))}
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
