// Evictions with their causes, retained copies, and doubted cluster health. See docs/FAILOVER.md.
import { Link, useLocation, useSearch as useParameters } from 'wouter'
import { clusterAddress, readAddress, searchAddress, writeAddress } from '../../api/address'
import { CLUSTERS } from '../../api/clusters'
import { entriesIn, entriesOf } from '../../api/journal'
import { conditionOf, type Binding, type Cluster, type EvictionTask } from '../../api/karmada'
import { countObjects, objectsOf } from '../../api/kube'
import type { KubeEvent } from '../../api/types'
import { QueryResult, usePolledQuery } from '../../parts/polledQuery'
import { ClusterName } from '../../parts/ClusterName'
import { age, since } from '../../parts/format'
import { JournalTable } from '../../parts/Journal'
import { Pill } from '../../parts/Pill'
import { Table } from '../../parts/Table'
import { useTextOf } from '../../text'
import { fleetText } from '../../text/fleet'
import { journalText } from '../../text/journal'
import { propagationText } from '../../text/propagation'
import { isSpan, SPANS } from '../fleet/buckets'
import { EventTable } from '../fleet/Events'
import { BindingTable, TemplateLink, useBindings } from './Bindings'

/** Conditions of a Cluster about doubt, halted evictions and removal; each with its normal status. */
const TELLING = { HealthSignals: 'True', EvictionsHalted: 'False', Removing: '' }
/** Thresholds of unready clusters with --failover-safety=safe. */
const MANY = 0.3
const MOST = 0.55
const EVENTS = 'EvictionWaitsForReplacement,EvictionCancelled,EvictionsHalted,EvictionsResumed,ClusterFlipped,ReturnRefused,ResourcesLeftBehind,EvictWorkloadFromClusterSucceed'

export function Failover() {
  const t = useTextOf(propagationText)
  const clusters = usePolledQuery(['clusters in doubt'], doubtful)
  return (
    <>
      <h1>{t.tabs.failover}</h1>
      <h2>{t.breaker}</h2>
      <QueryResult of={clusters}>{(told) => <Breaker {...told} />}</QueryResult>
      <h2>{t.doubts}</h2>
      <QueryResult of={clusters}>{(told) => told.all > 0 && <Doubts clusters={told.clusters} />}</QueryResult>
      <h2>{t.evictions}</h2>
      <Evictions />
      <h2>{t.returning}</h2>
      <BindingTable q="ann:failover.crowsnest.io/home" emptyText={t.noneOfThese} />
      <h2>{t.fenced}</h2>
      <BindingTable q="condition:WaitingForFence=True" emptyText={t.noneOfThese} />
      <Moves />
      <h2>{t.failoverEvents}</h2>
      <EventTable q={`kind:event reason:${EVENTS}`} live most={30} />
      <p className="notice">{t.onlyYours}</p>
    </>
  )
}

/** Number of journal entries shown. */
const MOST_MOVES = 200

/** The journal of the fleet, newest first. */
function Moves() {
  const t = useTextOf(journalText)
  const { spans } = useTextOf(fleetText)
  const [, navigate] = useLocation()
  const view = readAddress(useParameters())
  const last = isSpan(view.last) ? view.last : '1h'
  const go = (changed: Record<string, string | undefined>) => navigate(`/steer/failover${writeAddress({ ...view, ...changed })}`, { replace: true })
  const q = entriesOf(last)
  const moves = usePolledQuery(['moves', last], async (signal) => entriesIn(await objectsOf<KubeEvent>(`${q} sort:-last`, MOST_MOVES, signal)).reverse())
  return (
    <>
      <h2>{t.title}</h2>
      <p className="acts">
        <label>
          {t.last}{' '}
          <select value={last} onChange={(event) => go({ last: event.target.value, entry: undefined })}>
            {SPANS.map((span) => (
              <option key={span} value={span}>
                {spans[span]}
              </option>
            ))}
          </select>
        </label>
        <Link href={searchAddress({ q })}>{t.asQuery}</Link>
      </p>
      <QueryResult of={moves}>{(entries) => (entries.length === 0 ? <p className="empty">{t.noEntries}</p> : <JournalTable entries={entries} chosen={view.entry} onChoose={(entry) => go({ entry })} />)}</QueryResult>
    </>
  )
}

interface Doubtful {
  all: number
  /** Not ready, and not being deleted. */
  down: number
  /** Clusters with a condition to show. */
  clusters: Cluster[]
}

/** Number of doubted or leaving clusters shown. */
const MOST_DOUBTS = 100
const DOUBTS = Object.entries(TELLING).map(([type, well]) => `(condition:${type}${well && ` -condition:${type}=${well}`})`)

async function doubtful(signal: AbortSignal): Promise<Doubtful> {
  const [all, down, clusters] = await Promise.all([
    countObjects(CLUSTERS, [], signal),
    countObjects(`${CLUSTERS} condition:Ready=False -is:terminating`, [], signal),
    objectsOf<Cluster>(`${CLUSTERS} (${DOUBTS.join(' OR ')}) sort:name`, MOST_DOUBTS, signal),
  ])
  return { all: all.total, down: down.total, clusters }
}

function Breaker({ all, down, clusters }: Doubtful) {
  const t = useTextOf(propagationText)
  if (all === 0) return <p className="empty">{t.noClusters}</p>
  const doubted = clusters.some(({ status }) => conditionOf(status?.conditions, 'HealthSignals')?.reason === 'Doubted')
  const part = down / all
  const halted = doubted || (down >= 2 && part > MOST)
  const state = halted ? 'halted' : down >= 2 && part > MANY ? 'slow' : 'calm'
  return (
    <p data-breaker={state}>
      <Pill state={t.breakerSays(down, all)} tone={state === 'calm' ? (down === 0 ? 'good' : 'warn') : 'bad'} />{' '}
      {state === 'halted' ? t.breakerHalted : state === 'slow' ? t.breakerSlow : t.breakerCalm} <small className="why">{t.breakerNote}</small>
    </p>
  )
}

function Doubts({ clusters }: { clusters: Cluster[] }) {
  const t = useTextOf(propagationText)
  const told = clusters.flatMap((cluster) =>
    (cluster.status?.conditions ?? []).filter(({ type, status }) => type in TELLING && TELLING[type as keyof typeof TELLING] !== status).map((condition) => ({ cluster, condition })),
  )
  if (told.length === 0) return <p className="empty">{t.noDoubts}</p>
  return (
    <Table label={t.doubts} heads={t.doubtHeads}>
      {told.map(({ cluster, condition }) => (
        <tr key={`${cluster.metadata.name}/${condition.type}`} data-doubt={cluster.metadata.name}>
          <th scope="row">
            <Link href={clusterAddress(cluster.metadata.name)}>
              <ClusterName name={cluster.metadata.name} />
            </Link>
          </th>
          <td>{conditionOf(cluster.status?.conditions, 'Ready')?.status}</td>
          <td>
            {condition.type}={condition.status}
          </td>
          <td>{condition.reason}</td>
          <td>{since(condition.lastTransitionTime)}</td>
          <td>{condition.message}</td>
        </tr>
      ))}
    </Table>
  )
}

function Evictions() {
  const t = useTextOf(propagationText)
  return (
    <QueryResult of={useBindings('is:evicting')}>
      {({ bindings }) => {
        const tasks = bindings.flatMap((binding) => (binding.spec.gracefulEvictionTasks ?? []).map((task) => ({ binding, task })))
        if (tasks.length === 0) return <p className="empty">{t.noEvictions}</p>
        return (
          <Table label={t.evictions} heads={t.evictionHeads}>
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
        <TemplateLink of={binding.spec.resource} />
      </th>
      <td>
        <ClusterName name={task.fromCluster} /> {task.replicas !== undefined && `× ${task.replicas}`}
      </td>
      <td>{task.reason}</td>
      <td>{task.producer}</td>
      <td>{since(task.creationTimestamp)}</td>
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
  const left = Date.parse(creationTimestamp) / 1000 + gracePeriodSeconds - Date.now() / 1000
  return <>{left > 0 ? t.graceLeft(age(left)) : t.graceOver}</>
}
