// Failover page: evictions with their causes, retained copies, and doubted cluster health. See docs/FAILOVER.md.
import { Link, useLocation, useSearch as useParameters } from 'wouter'
import { readAddress, searchAddress, writeAddress } from '../../api/address'
import { CLUSTER_QUERY } from '../../api/clusters'
import { parseEntries, journalQuery } from '../../api/journal'
import { conditionOf, type Binding, type Cluster, type EvictionTask } from '../../api/karmada'
import { countObjects, queryObjects } from '../../api/kube'
import type { KubeEvent } from '../../api/types'
import { QueryResult, usePolledQuery } from '../../parts/polledQuery'
import { ClusterLink } from '../../parts/ClusterLink'
import { ConditionCells } from '../../parts/ConditionCells'
import { formatAge, formatAgeSince } from '../../parts/format'
import { JournalTable } from '../../parts/Journal'
import { Options } from '../../parts/Options'
import { Pill } from '../../parts/Pill'
import { Table } from '../../parts/Table'
import { useTextOf } from '../../text'
import { fleetText } from '../../text/fleet'
import { journalText } from '../../text/journal'
import { propagationText } from '../../text/propagation'
import { isSpan, SPANS } from '../fleet/buckets'
import { EventTable } from '../fleet/Events'
import { BindingTable, TemplateLink, useBindings } from './Bindings'

/** Conditions of a Cluster about doubt, halted evictions and removal, each with its normal status; Removing has none. */
const NORMAL_STATUS = { HealthSignals: 'True', EvictionsHalted: 'False', Removing: '' }
/** Fractions of unready clusters above which evictions slow down and halt, with --failover-safety=safe. */
const SECONDARY_RATE_THRESHOLD = 0.3
const HALT_THRESHOLD = 0.55
const EVENT_REASONS = 'EvictionWaitsForReplacement,EvictionCancelled,EvictionsHalted,EvictionsResumed,ClusterFlipped,ReturnRefused,ResourcesLeftBehind,EvictWorkloadFromClusterSucceed'

export function Failover() {
  const t = useTextOf(propagationText)
  const clusters = usePolledQuery(['clusters in doubt'], readFleetDoubt)
  return (
    <>
      <h1>{t.tabs.failover}</h1>
      <h2>{t.breaker}</h2>
      <QueryResult query={clusters}>{(doubt) => <Breaker {...doubt} />}</QueryResult>
      <h2>{t.doubts}</h2>
      <QueryResult query={clusters}>{(doubt) => doubt.total > 0 && <Doubts clusters={doubt.clusters} />}</QueryResult>
      <h2>{t.evictions}</h2>
      <Evictions />
      <h2>{t.pendingFailback}</h2>
      <BindingTable q="ann:failover.crowsnest.io/home" emptyText={t.noneOfThese} />
      <h2>{t.waitingForFence}</h2>
      <BindingTable q="condition:WaitingForFence=True" emptyText={t.noneOfThese} />
      <FleetJournal />
      <h2>{t.failoverEvents}</h2>
      <EventTable q={`kind:event reason:${EVENT_REASONS}`} live limit={30} />
      <p className="notice">{t.readableOnly}</p>
    </>
  )
}

/** Maximum number of journal entries shown. */
const MAX_ENTRIES = 200

/** The journal of the fleet, newest first. */
function FleetJournal() {
  const t = useTextOf(journalText)
  const { spans } = useTextOf(fleetText)
  const [, navigate] = useLocation()
  const view = readAddress(useParameters())
  const selectedSpan = isSpan(view.last) ? view.last : '1h'
  const updateView = (changed: Record<string, string | undefined>) => navigate(`/steer/failover${writeAddress({ ...view, ...changed })}`, { replace: true })
  const q = journalQuery(selectedSpan)
  const journal = usePolledQuery(['moves', selectedSpan], async (signal) => parseEntries(await queryObjects<KubeEvent>(`${q} sort:-last`, MAX_ENTRIES, signal)).reverse())
  return (
    <>
      <h2>{t.title}</h2>
      <p className="acts">
        <label>
          {t.last}{' '}
          <select value={selectedSpan} onChange={(event) => updateView({ last: event.target.value, entry: undefined })}>
            <Options values={SPANS} labels={spans} />
          </select>
        </label>
        <Link href={searchAddress({ q })}>{t.asQuery}</Link>
      </p>
      <QueryResult query={journal}>{(entries) => (entries.length === 0 ? <p className="empty">{t.noEntries}</p> : <JournalTable entries={entries} chosen={view.entry} onChoose={(entry) => updateView({ entry })} />)}</QueryResult>
    </>
  )
}

interface FleetDoubt {
  total: number
  /** Number of clusters that are not ready and not being deleted. */
  unready: number
  /** Clusters with an abnormal condition. */
  clusters: Cluster[]
}

/** Maximum number of shown clusters that are doubted or being removed. */
const MAX_CLUSTERS = 100
const DOUBT_TERMS = Object.entries(NORMAL_STATUS).map(([type, normal]) => `(condition:${type}${normal && ` -condition:${type}=${normal}`})`)

async function readFleetDoubt(signal: AbortSignal): Promise<FleetDoubt> {
  const [all, down, clusters] = await Promise.all([
    countObjects(CLUSTER_QUERY, [], signal),
    countObjects(`${CLUSTER_QUERY} condition:Ready=False -is:terminating`, [], signal),
    queryObjects<Cluster>(`${CLUSTER_QUERY} (${DOUBT_TERMS.join(' OR ')}) sort:name`, MAX_CLUSTERS, signal),
  ])
  return { total: all.total, unready: down.total, clusters }
}

function Breaker({ total, unready, clusters }: FleetDoubt) {
  const t = useTextOf(propagationText)
  if (total === 0) return <p className="empty">{t.noClusters}</p>
  const isDoubted = clusters.some(({ status }) => conditionOf(status?.conditions, 'HealthSignals')?.reason === 'Doubted')
  const unreadyFraction = unready / total
  const isHalted = isDoubted || (unready >= 2 && unreadyFraction > HALT_THRESHOLD)
  const state = isHalted ? 'halted' : unready >= 2 && unreadyFraction > SECONDARY_RATE_THRESHOLD ? 'slow' : 'calm'
  return (
    <p data-breaker={state}>
      <Pill state={t.breakerCounts(unready, total)} tone={state === 'calm' ? (unready === 0 ? 'good' : 'warn') : 'bad'} />{' '}
      {state === 'halted' ? t.breakerHalted : state === 'slow' ? t.breakerSlow : t.breakerCalm} <small className="why">{t.breakerNote}</small>
    </p>
  )
}

function Doubts({ clusters }: { clusters: Cluster[] }) {
  const t = useTextOf(propagationText)
  const abnormal = clusters.flatMap((cluster) =>
    (cluster.status?.conditions ?? []).filter(({ type, status }) => type in NORMAL_STATUS && NORMAL_STATUS[type as keyof typeof NORMAL_STATUS] !== status).map((condition) => ({ cluster, condition })),
  )
  if (abnormal.length === 0) return <p className="empty">{t.noDoubts}</p>
  return (
    <Table label={t.doubts} headers={t.doubtHeaders}>
      {abnormal.map(({ cluster, condition }) => (
        <tr key={`${cluster.metadata.name}/${condition.type}`} data-doubt={cluster.metadata.name}>
          <th scope="row">
            <ClusterLink name={cluster.metadata.name} />
          </th>
          <td>{conditionOf(cluster.status?.conditions, 'Ready')?.status}</td>
          <td>
            {condition.type}={condition.status}
          </td>
          <ConditionCells condition={condition} />
        </tr>
      ))}
    </Table>
  )
}

function Evictions() {
  const t = useTextOf(propagationText)
  return (
    <QueryResult query={useBindings('is:evicting')}>
      {({ bindings }) => {
        const tasks = bindings.flatMap((binding) => (binding.spec.gracefulEvictionTasks ?? []).map((task) => ({ binding, task })))
        if (tasks.length === 0) return <p className="empty">{t.noEvictions}</p>
        return (
          <Table label={t.evictions} headers={t.evictionHeaders}>
            {tasks.map(({ binding, task }) => (
              <TaskRow key={`${binding.metadata.namespace}/${binding.metadata.name}/${task.fromCluster}`} binding={binding} task={task} />
            ))}
          </Table>
        )
      }}
    </QueryResult>
  )
}

function TaskRow({ binding, task }: { binding: Binding; task: EvictionTask }) {
  const t = useTextOf(propagationText)
  return (
    <tr data-evicting={task.fromCluster}>
      <th scope="row">
        <TemplateLink template={binding.spec.resource} />
      </th>
      <td>
        <ClusterLink name={task.fromCluster} /> {task.replicas !== undefined && `× ${task.replicas}`}
      </td>
      <td>{task.reason}</td>
      <td>{task.producer}</td>
      <td>{formatAgeSince(task.creationTimestamp)}</td>
      <td>
        {task.purgeMode} <span className="mid">{task.suppressDeletion ? t.suppressed : <Grace task={task} />}</span>
      </td>
      <td>{task.message}</td>
    </tr>
  )
}

function Grace({ task: { creationTimestamp, gracePeriodSeconds } }: { task: EvictionTask }) {
  const t = useTextOf(propagationText)
  if (!creationTimestamp || gracePeriodSeconds === undefined) return null
  const secondsLeft = Date.parse(creationTimestamp) / 1000 + gracePeriodSeconds - Date.now() / 1000
  return <>{secondsLeft > 0 ? t.graceLeft(formatAge(secondsLeft)) : t.graceOver}</>
}
