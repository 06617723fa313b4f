// Failures of an object: the states of a pod's failing containers, and the failing pods of a workload.
import { Link } from 'wouter'
import { objectAddress, searchAddress } from '../../api/address'
import { clusterRoot, CONTROL_PLANE, getJson, groupOf, request, type ObjectRef } from '../../api/client'
import { lastOccurrence, newestFirst } from '../../api/involved'
import { withTimeout } from '../../api/kube'
import type { Hit, KubeEvent, KubeObject } from '../../api/types'
import { API } from '../../api/useSearch'
import { usePolledQuery } from '../../parts/polledQuery'
import { ClusterName } from '../../parts/ClusterName'
import { formatAgeSince } from '../../parts/format'
import { Pill } from '../../parts/Pill'
import { Table } from '../../parts/Table'
import { useTextOf } from '../../text'
import { objectText as texts } from '../../text/object'
import { EXIT_CODE_COLUMNS, exitCodesOf, failuresOf, type Failure } from './failures'
import { podsOf } from './facts'
import { logParameters } from './useLogs'

export function Failures({ objectRef, object }: { objectRef: ObjectRef; object: KubeObject }) {
  const failures = failuresOf(object)
  if (failures.length > 0) return <PodFailures objectRef={objectRef} object={object} failures={failures} />
  const q = failingPodsQuery(objectRef, object.kind)
  return q === undefined ? null : <WorkloadFailures q={q} />
}

function PodFailures({ objectRef, object, failures }: { objectRef: ObjectRef; object: KubeObject; failures: Failure[] }) {
  const t = useTextOf(texts)
  return (
    <section className="failures" aria-label={t.failures}>
      {failures.map((failure) => (
        <div key={failure.container}>
          <p>
            <Pill state={failure.state} tone="bad" /> {failure.container && <b>{failure.container}</b>}{' '}
            {[
              failure.exitCode !== undefined && t.exited(failure.exitCode),
              failure.restarts > 0 && t.restarted(failure.restarts),
              failure.since && t.ago(formatAgeSince(failure.since)),
            ]
              .filter(Boolean)
              .join(' · ')}
          </p>
          {failure.message && <p className="why">{failure.message}</p>}
          {failure.container && <LastLine objectRef={objectRef} failure={failure} />}
        </div>
      ))}
      <LastWarning cluster={objectRef.cluster} object={object} />
    </section>
  )
}

/** The last line in the log of a container's current or previous run. */
function LastLine({ objectRef, failure: { container, previous } }: { objectRef: ObjectRef; failure: Failure }) {
  const t = useTextOf(texts)
  const q = podsOf(objectRef, objectRef.cluster) ?? ''
  const line = usePolledQuery(
    ['last line', objectRef, container, previous],
    async (signal) => {
      const query = logParameters({ q, container, previous, follow: false, tail: '1' })
      const text = await withTimeout((timeoutSignal) => request(`${API}/logs?${query}`, { headers: { Accept: 'text/plain' }, signal: timeoutSignal }).then((response) => response.text()), signal)
      return text.trim().split('\n').at(-1) ?? ''
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

/** Removes the source at the beginning of a log line in plain text: `member1 default/web-0 web | text`. */
const withoutSource = (line: string) => line.replace(/^\S+ \S+ \S+ \| /, '')

function LastWarning({ cluster, object }: { cluster: string; object: KubeObject }) {
  const t = useTextOf(texts)
  const { namespace, uid, name } = object.metadata
  const events = usePolledQuery(['last warning', cluster, uid], (signal) => {
    const selector = encodeURIComponent(`involvedObject.uid=${uid ?? ''},type=Warning`)
    return withTimeout((timeoutSignal) => getJson<{ items: KubeEvent[] }>(`${clusterRoot(cluster)}/api/v1/namespaces/${namespace ?? ''}/events?fieldSelector=${selector}&limit=50`, timeoutSignal), signal)
  })
  const [last] = [...(events.data?.items ?? [])].sort(newestFirst)
  if (!last) return null
  return (
    <p>
      <Pill state="Warning" text={last.reason} /> {last.message} · {t.ago(formatAgeSince(lastOccurrence(last)))}{' '}
      <Link href={objectAddress({ cluster, apiVersion: 'v1', resource: 'pods', namespace, name }, 'events')}>{t.tabs.events}</Link>
    </p>
  )
}

/** Maximum number of failing pods shown. */
const MAX_PODS = 5
const WORKLOAD_GROUPS: Record<string, string> = { deployments: 'apps', statefulsets: 'apps', daemonsets: 'apps', replicasets: 'apps', jobs: 'batch' }

/** Query for the failing pods of a workload, for a template in all clusters; undefined for other kinds. */
export function failingPodsQuery({ apiVersion, resource, cluster, namespace, name }: ObjectRef, kind: string): string | undefined {
  if (WORKLOAD_GROUPS[resource] !== groupOf(apiVersion)) return undefined
  const clusterTerm = cluster === CONTROL_PLANE ? '' : ` cluster:=${cluster}`
  return `kind:pod ns:=${namespace ?? ''} owner:${kind.toLowerCase()}/${name} depth:2${clusterTerm} -status:Running,Completed,Succeeded`
}

function WorkloadFailures({ q }: { q: string }) {
  const t = useTextOf(texts)
  const pods = usePolledQuery(['failing', q], (signal) => getJson<{ hits: Hit[]; total: number }>(`${API}/query?limit=${MAX_PODS}&facets=&columns=${encodeURIComponent(EXIT_CODE_COLUMNS.join())}&q=${encodeURIComponent(`${q} sort:-restarts`)}`, signal))
  if (!pods.data || pods.data.hits.length === 0) return null
  const { hits, total } = pods.data
  return (
    <section className="failures" aria-label={t.failures}>
      <p>
        <Link href={searchAddress({ q })}>{t.failingPods(total)}</Link>
      </p>
      <Table label={t.failures} headers={t.failingHeaders}>
        {hits.map((hit) => (
          <tr key={`${hit.cluster}/${hit.name}`}>
            <th scope="row">
              <Link href={objectAddress(hit)}>{hit.name}</Link>
            </th>
            <td>
              <ClusterName name={hit.cluster} />
            </td>
            <td>
              <Pill state={hit.status} />
            </td>
            <td className="number">{exitCodesOf(hit)}</td>
            <td className="number">{hit.restarts}</td>
            <td className="number">{formatAgeSince(hit.created)}</td>
          </tr>
        ))}
      </Table>
    </section>
  )
}
