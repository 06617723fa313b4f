// Failures of an object: the states of a pod and its failing containers with the last warning, and the failing pods of a workload.
import { Link } from 'wouter'
import { objectAddress, searchAddress } from '../../api/address'
import { clusterRoot, CONTROL_PLANE, getJson, groupOf, qualifiedName, request, type ObjectRef } from '../../api/client'
import { lastOccurrence, newestFirst } from '../../api/involved'
import { withTimeout } from '../../api/kube'
import { quote } from '../../api/query'
import type { Hit, KubeEvent, KubeObject } from '../../api/types'
import { API } from '../../api/searchApi'
import { usePolledQuery } from '../../parts/polledQuery'
import { ClusterLink } from '../../parts/ClusterLink'
import { formatAgeSince } from '../../parts/format'
import { Pill } from '../../parts/Pill'
import { toneOf } from '../../parts/status'
import { Table } from '../../parts/Table'
import { useTextOf } from '../../text'
import { objectText as texts } from '../../text/object'
import { EXIT_CODE_COLUMNS, exitCodesOf, failedSince, failuresOf, isWaiting, TIME_COLUMNS, type Failure } from './failures'
import { podsOf } from './facts'
import { logParameters } from './useLogs'

interface FailuresProps {
  objectRef: ObjectRef
  object: KubeObject
  /** The object is a version of the past: its current logs, events and pods are not shown. */
  isPast?: boolean
}

export function Failures({ objectRef, object, isPast = false }: FailuresProps) {
  const failures = failuresOf(object)
  if (failures.length > 0 || (isWaiting(object) && !isPast)) return <PodFailures objectRef={objectRef} object={object} failures={failures} isPast={isPast} />
  if (isPast) return null
  const q = failingPodsQuery(objectRef, object.kind)
  return q === undefined ? null : <WorkloadFailures q={q} />
}

function PodFailures({ objectRef, object, failures, isPast }: Required<FailuresProps> & { failures: Failure[] }) {
  const t = useTextOf(texts)
  const warning = useLastWarning(objectRef.cluster, object, !isPast)
  if (failures.length === 0 && !warning) return null
  return (
    <section className="failures" aria-label={t.failures}>
      {failures.map((failure) => (
        <div key={failure.container}>
          <p>
            <Pill state={failure.state} tone={toneOf(failure.state) === 'busy' ? 'busy' : 'bad'} /> {failure.container && <b>{failure.container}</b>}{' '}
            {[
              failure.exitCode !== undefined && t.exited(failure.exitCode),
              failure.restarts > 0 && t.restarted(failure.restarts),
              failure.since && t.ago(formatAgeSince(failure.since)),
            ]
              .filter(Boolean)
              .join(' · ')}
          </p>
          {failure.message && <p className="why">{failure.message}</p>}
          {failure.container && !isPast && <LastLine podRef={objectRef} container={failure.container} previous={failure.previous} />}
        </div>
      ))}
      {warning && <LastWarning cluster={objectRef.cluster} object={object} warning={warning} />}
    </section>
  )
}

interface LastLineProps {
  podRef: ObjectRef
  /** Absent: any container of the pod. */
  container?: string | undefined
  previous: boolean
}

/** The last line in the log of a container's current or previous run. */
function LastLine({ podRef: objectRef, container, previous }: LastLineProps) {
  const t = useTextOf(texts)
  const q = podsOf(objectRef, objectRef.cluster) ?? ''
  const line = usePolledQuery(
    ['last line', q, container, previous],
    async (signal) => {
      const query = logParameters({ q, container, previous, follow: false, tail: '1' })
      const text = await withTimeout((timeoutSignal) => request(`${API}/logs?${query}`, { headers: { Accept: 'text/plain' }, signal: timeoutSignal }).then((response) => response.text()), signal)
      return text.trim().split('\n').findLast((line) => !line.startsWith(MESSAGE_PREFIX)) ?? ''
    },
    30_000,
  )
  const view = { container, ...(previous && { previous: 'true' }) }
  if (!line.data) return null
  return (
    <p>
      <code>{withoutSource(line.data)}</code> <Link href={objectAddress(objectRef, 'logs', view)}>{t.tabs.logs}</Link>
    </p>
  )
}

/** Prefix of messages in a log in plain text, such as that of a container that has not started. */
const MESSAGE_PREFIX = 'crowsnest: '

/** Removes the source at the beginning of a log line in plain text: `member1 default/web-0 web | text`. */
const withoutSource = (line: string) => line.replace(/^\S+ \S+ \S+ \| /, '')

/** The last Warning event about a pod in its cluster. */
function useLastWarning(cluster: string, object: KubeObject, enabled: boolean): KubeEvent | undefined {
  const { namespace, uid } = object.metadata
  const readEvents = (signal: AbortSignal) => {
    const selector = encodeURIComponent(`involvedObject.uid=${uid ?? ''},type=Warning`)
    return withTimeout((timeoutSignal) => getJson<{ items: KubeEvent[] }>(`${clusterRoot(cluster)}/api/v1/namespaces/${namespace ?? ''}/events?fieldSelector=${selector}&limit=50`, timeoutSignal), signal)
  }
  const events = usePolledQuery(['last warning', cluster, uid], readEvents, 5_000, enabled)
  return enabled ? [...(events.data?.items ?? [])].sort(newestFirst)[0] : undefined
}

function LastWarning({ cluster, object, warning }: { cluster: string; object: KubeObject; warning: KubeEvent }) {
  const t = useTextOf(texts)
  const { namespace, name } = object.metadata
  return (
    <p>
      <Pill state="Warning" text={warning.reason} /> {warning.message} · {t.ago(formatAgeSince(lastOccurrence(warning)))}{' '}
      <Link href={objectAddress({ cluster, apiVersion: 'v1', resource: 'pods', namespace, name }, 'events')}>{t.tabs.events}</Link>
    </p>
  )
}

/** Maximum number of failing pods shown, and of those with their last event and log line, which take a request each. */
const MAX_PODS = 5
const MAX_DETAILED_PODS = 3
const WORKLOAD_GROUPS: Record<string, string> = { deployments: 'apps', statefulsets: 'apps', daemonsets: 'apps', replicasets: 'apps', jobs: 'batch' }

/** Query for the failing pods of a workload, for a template in all clusters; undefined for other kinds. */
export function failingPodsQuery({ apiVersion, resource, cluster, namespace, name }: ObjectRef, kind: string): string | undefined {
  if (WORKLOAD_GROUPS[resource] !== groupOf(apiVersion)) return undefined
  const clusterTerm = cluster === CONTROL_PLANE ? '' : ` cluster:=${cluster}`
  return `kind:pod ns:=${namespace ?? ''} owner:${qualifiedName(kind.toLowerCase(), apiVersion)}/${name} depth:2${clusterTerm} is:unhealthy`
}

/** True if a container of a pod has run, so that it may have a log. */
const hasRun = (hit: Hit) => (hit.restarts ?? 0) > 0 || exitCodesOf(hit) !== '' || hit.status === 'Running'

/** The last Warning event about a pod, from the index. */
function LastEvent({ hit: { cluster, namespace, name } }: { hit: Hit }) {
  const t = useTextOf(texts)
  const q = `kind:event type:Warning about:pod/${namespace ?? ''}/${name} cluster:=${quote(cluster)} sort:-last`
  const events = usePolledQuery(['last event', q], (signal) => getJson<{ hits: Hit[] }>(`${API}/query?limit=1&facets=&columns=print:Reason,print:Message,changed&q=${encodeURIComponent(q)}`, signal), 30_000)
  const event = events.data?.hits[0]
  if (!event) return null
  const { 'print:Reason': reason, 'print:Message': message, changed } = event.columns ?? {}
  return (
    <>
      <Link href={objectAddress(event)}>{reason}</Link> {message} {changed && <span className="why">{t.ago(formatAgeSince(changed))}</span>}
    </>
  )
}

function WorkloadFailures({ q }: { q: string }) {
  const t = useTextOf(texts)
  const pods = usePolledQuery(['failing', q], (signal) => getJson<{ hits: Hit[]; total: number }>(`${API}/query?limit=${MAX_PODS}&facets=&columns=${encodeURIComponent([...EXIT_CODE_COLUMNS, ...TIME_COLUMNS].join())}&q=${encodeURIComponent(`${q} sort:-restarts`)}`, signal))
  if (!pods.data || pods.data.hits.length === 0) return null
  const { hits, total } = pods.data
  return (
    <section className="failures" aria-label={t.failures}>
      <p>
        <Link href={searchAddress({ q })}>{t.failingPods(total)}</Link>
      </p>
      <Table label={t.failures} headers={t.failingHeaders}>
        {hits.map((hit, nth) => (
          <tr key={`${hit.cluster}/${hit.name}`}>
            <th scope="row">
              <Link href={objectAddress(hit)}>{hit.name}</Link>
            </th>
            <td>
              <ClusterLink name={hit.cluster} />
            </td>
            <td>
              <Pill state={hit.status} />
            </td>
            <td className="number">{exitCodesOf(hit)}</td>
            <td className="number">{hit.restarts}</td>
            <td className="number" title={failedSince(hit)}>
              {formatAgeSince(failedSince(hit))}
            </td>
            <td>{nth < MAX_DETAILED_PODS && <LastEvent hit={hit} />}</td>
            <td>{nth < MAX_DETAILED_PODS && hasRun(hit) && <LastLine podRef={hit} previous={false} />}</td>
          </tr>
        ))}
      </Table>
    </section>
  )
}
