import { QueryClient, QueryClientProvider, useQuery } from '@tanstack/react-query'
import { Link, useSearch as useParameters } from 'wouter'
import { objectAddress, readObject, type ObjectView, type Tab } from '../api/address'
import { ApiError, clusterRoot, getJson, getText, objectPath, type ObjectRef } from '../api/client'
import type { KubeEvent, KubeObject } from '../api/types'
import { useMay } from '../api/useMay'
import { ClusterName } from '../parts/ClusterName'
import { since } from '../parts/format'
import { Logs } from '../parts/Logs'
import { Yaml } from '../parts/Yaml'
import { useText, type Text } from '../text'

const queries = new QueryClient({ defaultOptions: { queries: { retry: 1, staleTime: 2_000 } } })

/** One object, read live from its cluster with the user's own rights. */
export function Resource() {
  return (
    <QueryClientProvider client={queries}>
      <Shown view={readObject(useParameters())} />
    </QueryClientProvider>
  )
}

function Shown({ view: { tab, ...ref } }: { view: ObjectView }) {
  const t = useText()
  const object = useQuery({
    queryKey: ['object', ref],
    queryFn: ({ signal }) => getJson<KubeObject>(objectPath(ref), signal),
    refetchInterval: 5_000,
  })
  const { cluster, namespace } = ref
  const where = namespace ?? t.allNamespaces
  const mayEvents = useMay({ cluster, verb: 'list', resource: 'events', namespace })
  const mayLogs = useMay({ cluster, verb: 'get', resource: 'pods', subresource: 'log', namespace })
  const why: Partial<Record<Tab, string>> = {
    ...(!mayEvents && { events: t.mayNot('list', 'events', where, cluster) }),
    ...(!mayLogs && { logs: t.mayNot('get', 'pods/log', where, cluster) }),
  }
  const tabs: Tab[] = ref.resource === 'pods' ? ['yaml', 'events', 'logs'] : ['yaml', 'events']
  return (
    <article className="resource">
      <h1>
        <small>{object.data?.kind ?? ref.resource}</small> {ref.name}
      </h1>
      <p>
        <ClusterName name={cluster} />
        {namespace && <> · {t.namespaceIs(namespace)}</>}
        {object.data && <> · {t.old(since(object.data.metadata.creationTimestamp))}</>}
      </p>
      <p className="command">
        <code>{kubectl(ref)}</code>
      </p>
      <nav className="tabs" aria-label={t.objectViews}>
        {tabs.map((name) =>
          why[name] === undefined ? (
            <Link key={name} href={objectAddress(ref, name)} replace aria-current={name === tab ? 'page' : undefined}>
              {t.tabs[name]}
            </Link>
          ) : (
            // It stays reachable by keyboard, so that it can say why.
            <a key={name} role="link" aria-disabled="true" tabIndex={0} title={why[name]} aria-label={`${t.tabs[name]}: ${why[name]}`}>
              {t.tabs[name]}
            </a>
          ),
        )}
      </nav>
      {object.error && <p role="alert">{explain(object.error, cluster, t)}</p>}
      {why[tab] && <p role="alert">{why[tab]}</p>}
      {tab === 'yaml' && <YamlTab refTo={ref} version={object.data?.metadata} />}
      {tab === 'events' && !why.events && object.data && <Events cluster={cluster} object={object.data} />}
      {tab === 'logs' && !why.logs && object.data && <Logs refTo={ref} pod={object.data} />}
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
  const t = useText()
  const { namespace, uid } = object.metadata
  const scope = namespace ? `/namespaces/${namespace}` : ''
  const selector = encodeURIComponent(`involvedObject.uid=${uid ?? ''}`)
  const events = useQuery({
    queryKey: ['events', cluster, uid],
    queryFn: ({ signal }) => getJson<{ items: KubeEvent[] }>(`${clusterRoot(cluster)}/api/v1${scope}/events?fieldSelector=${selector}`, signal),
    refetchInterval: 5_000,
  })
  if (events.error) return <p role="alert">{explain(events.error, cluster, t)}</p>
  if (!events.data) return <p className="empty">{t.loading}</p>
  if (events.data.items.length === 0) return <p className="empty">{t.noEvents}</p>
  const last = (e: KubeEvent) => e.lastTimestamp ?? e.eventTime ?? e.firstTimestamp ?? e.metadata.creationTimestamp
  const sorted = [...events.data.items].sort((a, b) => (last(b) ?? '').localeCompare(last(a) ?? ''))
  return (
    <table>
      <thead>
        <tr>
          {t.eventColumns.map((h) => (
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

function explain(error: unknown, cluster: string, t: Text): string {
  if (error instanceof ApiError && error.code === 403) return t.mayNotRead(cluster, error.message)
  if (error instanceof ApiError) return t.answers(cluster, error.message, error.code)
  return error instanceof Error ? error.message : String(error)
}

/** The command that shows the same in a terminal. */
function kubectl(ref: ObjectRef): string {
  const group = ref.apiVersion.includes('/') ? `.${ref.apiVersion.replace(/^(.*)\/(.*)$/, '$2.$1')}` : ''
  const scope = ref.namespace ? ` -n ${ref.namespace}` : ''
  const server = clusterRoot(ref.cluster)
  return `kubectl${server ? ` --context ${ref.cluster}` : ''} get ${ref.resource}${group} ${ref.name}${scope} -o yaml`
}
