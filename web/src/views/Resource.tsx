import { useQuery } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { ApiError, clusterRoot, getJson, getText, objectPath, type ObjectRef } from '../api/client'
import type { KubeEvent, KubeObject } from '../api/types'
import { ClusterName } from '../parts/ClusterName'
import { since } from '../parts/format'
import { Logs } from '../parts/Logs'
import { Yaml } from '../parts/Yaml'
import { resourceRoute, type Tab } from '../router'

/** One object, read live from its cluster with the user's own rights. */
export function Resource() {
  const { tab, ...ref } = resourceRoute.useSearch()
  const object = useQuery({
    queryKey: ['object', ref],
    queryFn: ({ signal }) => getJson<KubeObject>(objectPath(ref), signal),
    refetchInterval: 5_000,
  })
  const tabs: Tab[] = ref.resource === 'pods' ? ['yaml', 'events', 'logs'] : ['yaml', 'events']
  return (
    <article className="resource">
      <h1>
        <small>{object.data?.kind ?? ref.resource}</small> {ref.name}
      </h1>
      <p>
        <ClusterName name={ref.cluster} />
        {ref.namespace && <> · namespace {ref.namespace}</>}
        {object.data && <> · {since(object.data.metadata.creationTimestamp)} old</>}
      </p>
      <p className="command">
        <code>{kubectl(ref)}</code>
      </p>
      <nav className="tabs" aria-label="Views of this object">
        {tabs.map((t) => (
          <Link key={t} to="/object" search={{ ...ref, tab: t }} replace aria-current={t === tab ? 'page' : undefined}>
            {{ yaml: 'YAML', events: 'Events', logs: 'Logs' }[t]}
          </Link>
        ))}
      </nav>
      {object.error && <p role="alert">{explain(object.error, ref.cluster)}</p>}
      {tab === 'yaml' && <YamlTab refTo={ref} version={object.data?.metadata} />}
      {tab === 'events' && object.data && <Events cluster={ref.cluster} object={object.data} />}
      {tab === 'logs' && object.data && <Logs refTo={ref} pod={object.data} />}
    </article>
  )
}

function YamlTab({ refTo, version }: { refTo: ObjectRef; version: unknown }) {
  const text = useQuery({
    queryKey: ['yaml', refTo, version],
    queryFn: ({ signal }) => getText(objectPath(refTo), 'application/yaml', signal),
    enabled: version !== undefined,
    placeholderData: (previous) => previous,
  })
  return text.data === undefined ? null : <Yaml text={text.data} />
}

function Events({ cluster, object }: { cluster: string; object: KubeObject }) {
  const { namespace, uid } = object.metadata
  const scope = namespace ? `/namespaces/${namespace}` : ''
  const selector = encodeURIComponent(`involvedObject.uid=${uid ?? ''}`)
  const events = useQuery({
    queryKey: ['events', cluster, uid],
    queryFn: ({ signal }) => getJson<{ items: KubeEvent[] }>(`${clusterRoot(cluster)}/api/v1${scope}/events?fieldSelector=${selector}`, signal),
    refetchInterval: 5_000,
  })
  if (events.error) return <p role="alert">{explain(events.error, cluster)}</p>
  if (!events.data) return <p className="empty">Loading…</p>
  if (events.data.items.length === 0) return <p className="empty">No events. Clusters keep them for an hour by default.</p>
  const last = (e: KubeEvent) => e.lastTimestamp ?? e.eventTime ?? e.firstTimestamp ?? e.metadata.creationTimestamp
  const sorted = [...events.data.items].sort((a, b) => (last(b) ?? '').localeCompare(last(a) ?? ''))
  return (
    <table>
      <thead>
        <tr>
          {['Last seen', 'Type', 'Reason', 'Count', 'From', 'Message'].map((h) => (
            <th key={h} scope="col">
              {h}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {sorted.map((e) => (
          <tr key={e.metadata.uid}>
            <td>{since(last(e))}</td>
            <td className={e.type === 'Warning' ? 'bad' : undefined}>{e.type}</td>
            <td>{e.reason}</td>
            <td>{e.count ?? 1}</td>
            <td>{e.source?.component ?? e.reportingComponent}</td>
            <td>{e.message}</td>
          </tr>
        ))}
      </tbody>
    </table>
  )
}

function explain(error: unknown, cluster: string): string {
  if (error instanceof ApiError && error.code === 403) return `You may not read this in ${cluster}: ${error.message}`
  if (error instanceof ApiError) return `${cluster} answers: ${error.message} (${error.code})`
  return error instanceof Error ? error.message : String(error)
}

/** The command that shows the same in a terminal. */
function kubectl(ref: ObjectRef): string {
  const group = ref.apiVersion.includes('/') ? `.${ref.apiVersion.replace(/^(.*)\/(.*)$/, '$2.$1')}` : ''
  const scope = ref.namespace ? ` -n ${ref.namespace}` : ''
  const server = clusterRoot(ref.cluster)
  return `kubectl${server ? ` --context ${ref.cluster}` : ''} get ${ref.resource}${group} ${ref.name}${scope} -o yaml`
}
