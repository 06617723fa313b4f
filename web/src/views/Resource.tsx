import { QueryClient, QueryClientProvider, useQuery } from '@tanstack/react-query'
import { lazy, Suspense, useEffect, useState } from 'react'
import { Link, useSearch as useParameters } from 'wouter'
import { objectAddress, readObject, writeAddress, type ObjectView, type Tab } from '../api/address'
import { ApiError, CONTROL_PLANE, getJson, objectPath, reported, type ObjectRef } from '../api/client'
import { aboutOf, isTold } from '../api/journal'
import { withTimeout, TimeoutError } from '../api/kube'
import type { KubeObject } from '../api/types'
import { useRestored } from '../api/useConnection'
import { useCanI } from '../api/useCanI'
import { Control } from '../parts/Control'
import { useCopied } from '../parts/flash'
import { Popover } from '../parts/Popover'
import { Skeleton } from '../parts/Skeleton'
import { useTextOf } from '../text'
import { object as texts } from '../text/object'
import { propagationText } from '../text/propagation'
import { Actions } from './object/Actions'
import { commands, type Command } from './object/commands'
import { Events } from './object/Events'
import { explain } from './object/explain'
import { Failures } from './object/Failures'
import { Header } from './object/Header'
import { History } from './object/History'
import { Journal } from './object/Journal'
import { Logs, logsOf } from './object/Logs'
import { isSecret, readWithheld } from './object/objects'
import { isPlacementTab, placementTabs, type PlacementTab } from './object/placement'
import { Overview } from './object/Overview'
import { Related } from './object/Related'
import { useView } from './object/state'
import { tabShown, tabsOf } from './object/tabs'
import { YamlTab } from './object/YamlTab'
import './object/object.css'

const Why = lazy(() => import('./propagation/Why').then((part) => ({ default: part.Why })))
const Topology = lazy(() => import('./propagation/Topology').then((part) => ({ default: part.Topology })))
const Drift = lazy(() => import('./propagation/Drift').then((part) => ({ default: part.Drift })))
const Terminal = lazy(() => import('./object/Terminal').then((part) => ({ default: part.Terminal })))

const queries = new QueryClient({ defaultOptions: { queries: { retry: (count, error) => count < 1 && !(error instanceof ApiError && error.code < 500) && !(error instanceof TimeoutError), staleTime: 2_000, networkMode: 'always' } } })

/** One object, read live from its cluster with the user's own permissions. */
export function Resource() {
  const view = readObject(useParameters())
  useRestored(() => void queries.invalidateQueries())
  return (
    <QueryClientProvider client={queries}>
      {/* Keyed by object, so that no state is carried over to the next one. */}
      <Shown key={objectAddress(view)} view={view} />
    </QueryClientProvider>
  )
}

function Shown({ view: { tab: named, ...ref } }: { view: ObjectView }) {
  const t = useTextOf(texts)
  const [view] = useView()
  // Not in the address: a link must not show a Secret's values.
  const [revealed, setRevealed] = useState(false)
  const hidden = isSecret(ref) && !revealed
  const object = useQuery({
    queryKey: ['object', ref, hidden],
    queryFn: ({ signal }) => (hidden ? readWithheld(ref, signal) : withTimeout((patience) => getJson<KubeObject>(objectPath(ref), patience), signal)),
    refetchInterval: 5_000,
    ...(isSecret(ref) && { gcTime: 0 }),
  })
  const { cluster, namespace, name } = ref
  useEffect(() => {
    document.title = `${name} · ${cluster} · Crowsnest`
  }, [name, cluster])
  const where = namespace ?? t.everywhere
  const mayEvents = useCanI({ cluster, verb: 'list', resource: 'events', namespace })
  const mayLogs = useCanI({ cluster, verb: 'get', resource: 'pods', subresource: 'log', namespace })
  const mayExec = useCanI({ cluster, verb: 'create', resource: 'pods', subresource: 'exec', namespace })
  const q = logsOf(ref, view)
  const why: Partial<Record<Tab, string>> = {
    ...(!mayEvents && { events: t.mayNot('list', 'events', where, cluster) }),
    ...(!mayLogs && { logs: t.mayNot('get', 'pods/log', where, cluster) }),
    ...(!mayExec && { terminal: t.mayNot('create', 'pods/exec', where, cluster) }),
  }
  const pod = ref.apiVersion === 'v1' && ref.resource === 'pods'
  const about = isTold(ref, object.data) ? aboutOf(ref, object.data) : undefined
  const placement = object.data ? placementTabs(ref, object.data) : []
  const tabs = tabsOf({ placement, journal: about !== undefined, logs: q !== undefined, terminal: pod })
  const tab = tabShown(named, tabs, object.data !== undefined)
  const kind = object.data?.kind ?? ref.resource
  const said = { kind, uid: object.data?.metadata.uid, view, ...(q !== undefined && { logs: q }), ...(about !== undefined && { about }) }
  const failure = reported(object.error)
  const gone = object.error instanceof ApiError && object.error.code === 404
  // If the member does not respond, its discovery is unknown, and the cached revisions are shown.
  const kept = gone || object.error instanceof TimeoutError || (object.error instanceof ApiError && object.error.code >= 500)
  return (
    <article className="resource">
      <header>
        <div className="what">
          <Header refTo={ref} object={object.data} kind={kind} propagated={placement.length > 0} tab={tab} />
        </div>
        <div className="tools">
          {object.data && !gone && <Actions refTo={ref} object={object.data} />}
          {object.data && placement.length > 0 && <Changes refTo={ref} kind={kind} />}
          <Commands list={commands(ref, tab, said)} />
        </div>
      </header>
      <nav className="tabs" aria-label={t.objectViews}>
        {tabs.map((other) =>
          why[other] === undefined ? (
            <Link key={other} href={objectAddress(ref, other)} replace aria-current={other === tab ? 'page' : undefined}>
              {t.tabs[other]}
            </Link>
          ) : (
            // It stays focusable, so that the reason can be read.
            <a key={other} role="link" aria-disabled="true" tabIndex={0} title={why[other]} aria-label={`${t.tabs[other]}: ${why[other]}`}>
              {t.tabs[other]}
            </a>
          ),
        )}
      </nav>
      {failure !== undefined && (
        <p role="alert">
          {explain(failure, cluster, t)} {kept && tab !== 'history' && <Link href={objectAddress(ref, 'history')}>{t.seeHistory}</Link>}
        </p>
      )}
      {why[tab] && <p role="alert">{why[tab]}</p>}
      {!object.data && failure === undefined && <Skeleton />}
      {tabs.includes(tab) && isPlacementTab(tab) && <Propagation tab={tab} refTo={ref} chosen={view.in} />}
      {tab === 'history' && <History refTo={ref} object={gone ? undefined : object.data} />}
      {tab === 'related' && <Related refTo={ref} />}
      {tab === 'journal' && about !== undefined && <Journal refTo={ref} about={about} />}
      {object.data && <Tabbed tab={tab} refTo={ref} object={object.data} q={q} pod={pod} may={why[tab] === undefined} revealed={revealed} onReveal={setRevealed} />}
    </article>
  )
}

/** Views of the template's propagation; a copy has those of its template, and the drift in its own cluster. */
function Propagation({ tab, refTo, chosen }: { tab: PlacementTab; refTo: ObjectRef; chosen: string | undefined }) {
  const { cluster, ...template } = refTo
  return (
    <div className="page">
      <Suspense fallback={<Skeleton />}>
        {tab === 'placement' ? (
          <Why template={template} />
        ) : tab === 'topology' ? (
          <Topology template={template} />
        ) : (
          <Drift template={template} cluster={chosen ?? (cluster === CONTROL_PLANE ? undefined : cluster)} hrefOf={(other) => objectAddress(refTo, 'drift', { in: other })} />
        )}
      </Suspense>
    </div>
  )
}

interface TabbedProps {
  tab: Tab
  refTo: ObjectRef
  object: KubeObject
  q: string | undefined
  pod: boolean
  may: boolean
  revealed: boolean
  onReveal: (revealed: boolean) => void
}

/** Tabs that need the object itself. */
function Tabbed({ tab, refTo, object, q, pod, may, revealed, onReveal }: TabbedProps) {
  const t = useTextOf(texts)
  if (tab === 'overview') {
    return (
      <>
        <Failures refTo={refTo} object={object} />
        <Overview refTo={refTo} object={object} />
      </>
    )
  }
  if (tab === 'yaml') return <YamlTab refTo={refTo} object={object} revealed={revealed} onReveal={onReveal} />
  if (tab === 'events' && may) return <Events refTo={refTo} object={object} />
  if (tab === 'logs' && may) return q === undefined ? <p className="empty">{t.noLogs}</p> : <Logs refTo={refTo} object={object} q={q} />
  if (tab === 'terminal' && may && pod) {
    return (
      <Suspense fallback={<p className="empty">{t.loading}</p>}>
        <Terminal refTo={refTo} object={object} />
      </Suspense>
    )
  }
  return null
}

/** Previews of changes to the template. */
function Changes({ refTo: { apiVersion, namespace, name }, kind }: { refTo: ObjectRef; kind: string }) {
  const t = useTextOf(propagationText)
  return (
    <>
      <Link className="button" href={`/plan${writeAddress({ apiVersion, kind, namespace, name })}`}>
        {t.ask}
      </Link>
      <Link className="button" href={`/steer/rebalance${writeAddress({ chosen: `${apiVersion} ${kind} ${namespace ?? ''} ${name}` })}`}>
        {t.rebalanceIt}
      </Link>
    </>
  )
}

/** The same tab as terminal commands. */
function Commands({ list }: { list: Command[] }) {
  const t = useTextOf(texts)
  const [copied, copy] = useCopied()
  return (
    <Popover label={t.asCommand}>
      {() =>
        list.map(({ tool, text }) => (
          <div key={text} className="command">
            <code>{text}</code>
            <Control aria-label={t.copyAs(tool)} why={navigator.clipboard ? undefined : t.noClipboard} onClick={() => void copy(text)}>
              {copied === text ? t.copied : t.copyAs(tool)}
            </Control>
          </div>
        ))
      }
    </Popover>
  )
}
