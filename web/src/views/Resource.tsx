import { QueryClient, QueryClientProvider, useQuery } from '@tanstack/react-query'
import { Suspense, useEffect, useState } from 'react'
import { Link, useSearch as useParameters } from 'wouter'
import { objectAddress, readObject, writeAddress, type ObjectView, type Tab } from '../api/address'
import { ApiError, CONTROL_PLANE, getJson, objectPath, viewErrorOf, type ObjectRef } from '../api/client'
import { journalNameOf, canHaveJournal } from '../api/journal'
import { withTimeout, TimeoutError } from '../api/kube'
import type { KubeObject } from '../api/types'
import { useOnConnectionRestored } from '../api/useConnection'
import { useCanI } from '../api/useCanI'
import { lazyPart } from '../parts/LazyPart'
import { ActionButton } from '../parts/ActionButton'
import { ClusterNotice } from '../parts/ClusterNotice'
import { Loading } from '../parts/Loading'
import { useCopied } from '../parts/flash'
import { usePageCommands } from '../parts/pageCommands'
import { Popover } from '../parts/Popover'
import { Skeleton } from '../parts/Skeleton'
import { useTextOf } from '../text'
import { objectText as texts } from '../text/object'
import { propagationText } from '../text/propagation'
import { AccessLink } from './analysis/AccessLink'
import { Actions } from './object/Actions'
import { commandsFor, type Command } from './object/commands'
import { Events } from './object/Events'
import { describeError } from './object/describeError'
import { Failures } from './object/Failures'
import { Header } from './object/Header'
import { History } from './object/History'
import { Journal } from './object/Journal'
import { Logs, logsQuery } from './object/Logs'
import { isSecret, readSecretWithoutValues } from './object/objects'
import { isPlacementTab, placementTabs, type PlacementTab } from './object/placement'
import { Overview } from './object/Overview'
import { Related } from './object/Related'
import { useViewParameters } from './object/state'
import { shownTab, tabsOf } from './object/tabs'
import { viewCommands } from './object/viewCommands'
import { YamlTab } from './object/YamlTab'
import './object/object.css'

const PlacementSummary = lazyPart(() => import('./propagation/PlacementSummary'), (part) => part.PlacementSummary)
const PlacementExplanation = lazyPart(() => import('./propagation/PlacementExplanation'), (part) => part.PlacementExplanation)
const Topology = lazyPart(() => import('./propagation/Topology'), (part) => part.Topology)
const Drift = lazyPart(() => import('./propagation/Drift'), (part) => part.Drift)
const Terminal = lazyPart(() => import('./object/Terminal'), (part) => part.Terminal)

const queries = new QueryClient({ defaultOptions: { queries: { retry: (count, error) => count < 1 && !(error instanceof ApiError && error.code < 500) && !(error instanceof TimeoutError), staleTime: 2_000, networkMode: 'always' } } })

/** Page of one object, read from its cluster with the user's own permissions. */
export function Resource() {
  const view = readObject(useParameters())
  useOnConnectionRestored(() => void queries.invalidateQueries())
  return (
    <QueryClientProvider client={queries}>
      {/* The key resets all state when the object changes. */}
      <ObjectPage key={objectAddress(view)} view={view} />
    </QueryClientProvider>
  )
}

function ObjectPage({ view: { tab: requestedTab, ...ref } }: { view: ObjectView }) {
  const t = useTextOf(texts)
  const [view] = useViewParameters()
  // This state is not in the address, because a link must not reveal a Secret's values.
  const [isRevealed, setIsRevealed] = useState(false)
  const isHidden = isSecret(ref) && !isRevealed
  const object = useQuery({
    queryKey: ['object', ref, isHidden],
    queryFn: ({ signal }) => (isHidden ? readSecretWithoutValues(ref, signal) : withTimeout((timeoutSignal) => getJson<KubeObject>(objectPath(ref), timeoutSignal), signal)),
    refetchInterval: 5_000,
    ...(isSecret(ref) && { gcTime: 0 }),
  })
  const { cluster, namespace, name } = ref
  useEffect(() => {
    document.title = `${name} · ${cluster} · Crowsnest`
  }, [name, cluster])
  const where = namespace ?? t.anyNamespace
  const mayEvents = useCanI({ cluster, verb: 'list', resource: 'events', namespace })
  const mayLogs = useCanI({ cluster, verb: 'get', resource: 'pods', subresource: 'log', namespace })
  const mayExec = useCanI({ cluster, verb: 'create', resource: 'pods', subresource: 'exec', namespace })
  const q = logsQuery(ref, view)
  const why: Partial<Record<Tab, string>> = {
    ...(!mayEvents && { events: t.mayNot('list', 'events', where, cluster) }),
    ...(!mayLogs && { logs: t.mayNot('get', 'pods/log', where, cluster) }),
    ...(!mayExec && { terminal: t.mayNot('create', 'pods/exec', where, cluster) }),
  }
  const isPod = ref.apiVersion === 'v1' && ref.resource === 'pods'
  const about = canHaveJournal(ref, object.data) ? journalNameOf(ref, object.data) : undefined
  const placement = object.data ? placementTabs(ref, object.data) : []
  const tabs = tabsOf({ placement, journal: about !== undefined, logs: q !== undefined, terminal: isPod })
  const tab = shownTab(requestedTab, tabs, object.data !== undefined)
  const kind = object.data?.kind ?? ref.resource
  const commandContext = { kind, uid: object.data?.metadata.uid, view, ...(q !== undefined && { logs: q }), ...(about !== undefined && { about }) }
  const commandTexts = { ...t.tabs, access: t.whoCanAccess }
  const allowedTabs = tabs.filter((otherTab) => why[otherTab] === undefined)
  usePageCommands(object.data ? viewCommands(ref, allowedTabs, tab).map((command) => ({ text: commandTexts[command.name], about: `${kind} ${name}`, href: command.href })) : [])
  const failure = viewErrorOf(object.error)
  const isDeleted = object.error instanceof ApiError && object.error.code === 404
  // The cache has revisions of a deleted object, and of an object whose cluster does not respond.
  const hasHistory = isDeleted || object.error instanceof TimeoutError || (object.error instanceof ApiError && object.error.code >= 500)
  return (
    <article className="resource">
      <ClusterNotice cluster={cluster} />
      <header>
        <div className="what">
          <Header objectRef={ref} object={object.data} kind={kind} isPropagated={placement.length > 0} tab={tab} />
        </div>
        <div className="tools">
          {object.data && !isDeleted && <Actions objectRef={ref} object={object.data} isHidden={isHidden} />}
          {object.data && !isDeleted && <AccessLink objectRef={ref} />}
          {object.data && placement.length > 0 && <PreviewLinks objectRef={ref} kind={kind} />}
          <Commands name={name} list={commandsFor(ref, tab, commandContext)} />
        </div>
      </header>
      <nav className="tabs" aria-label={t.objectViews}>
        {tabs.map((otherTab) =>
          why[otherTab] === undefined ? (
            <Link key={otherTab} href={objectAddress(ref, otherTab)} replace aria-current={otherTab === tab ? 'page' : undefined}>
              {t.tabs[otherTab]}
            </Link>
          ) : (
            // It stays focusable, so that the reason can be read.
            <a key={otherTab} role="link" aria-disabled="true" tabIndex={0} title={why[otherTab]} aria-label={`${t.tabs[otherTab]}: ${why[otherTab]}`}>
              {t.tabs[otherTab]}
            </a>
          ),
        )}
      </nav>
      {failure !== undefined && (
        <p role="alert">
          {describeError(failure, cluster, t)} {hasHistory && tab !== 'history' && <Link href={objectAddress(ref, 'history')}>{t.seeHistory}</Link>}
        </p>
      )}
      {why[tab] && <p role="alert">{why[tab]}</p>}
      {!object.data && failure === undefined && <Skeleton />}
      {tabs.includes(tab) && isPlacementTab(tab) && <Propagation tab={tab} objectRef={ref} selectedCluster={view.in} />}
      {tab === 'history' && <History objectRef={ref} object={isDeleted ? undefined : object.data} />}
      {tab === 'related' && <Related objectRef={ref} />}
      {tab === 'journal' && about !== undefined && <Journal objectRef={ref} about={about} />}
      {object.data && <TabContent tab={tab} objectRef={ref} object={object.data} q={q} isPod={isPod} isAllowed={why[tab] === undefined} revealed={isRevealed} onReveal={setIsRevealed} />}
    </article>
  )
}

/** Tabs of the propagation of a template. A copy has the tabs of its template; its drift is the one in its own cluster. */
function Propagation({ tab, objectRef, selectedCluster }: { tab: PlacementTab; objectRef: ObjectRef; selectedCluster: string | undefined }) {
  const { cluster, ...template } = objectRef
  return (
    <div className="page">
      <Suspense fallback={<Skeleton />}>
        {tab === 'placement' ? (
          <PlacementExplanation template={template} />
        ) : tab === 'topology' ? (
          <Topology template={template} />
        ) : (
          <Drift template={template} cluster={selectedCluster ?? (cluster === CONTROL_PLANE ? undefined : cluster)} hrefOf={(otherCluster) => objectAddress(objectRef, 'drift', { in: otherCluster })} />
        )}
      </Suspense>
    </div>
  )
}

interface TabContentProps {
  tab: Tab
  objectRef: ObjectRef
  object: KubeObject
  q: string | undefined
  isPod: boolean
  isAllowed: boolean
  revealed: boolean
  onReveal: (revealed: boolean) => void
}

/** The template of a propagated object: it has the same name in the control plane. */
const templateOf = ({ apiVersion, resource, namespace, name }: ObjectRef) => ({ apiVersion, resource, namespace, name })

/** Tabs that need the object itself. */
function TabContent({ tab, objectRef, object, q, isPod, isAllowed, revealed, onReveal }: TabContentProps) {
  const t = useTextOf(texts)
  if (tab === 'overview') {
    return (
      <>
        <Failures objectRef={objectRef} object={object} />
        {placementTabs(objectRef, object).includes('topology') && (
          <Suspense fallback={null}>
            <PlacementSummary template={templateOf(objectRef)} />
          </Suspense>
        )}
        <Overview objectRef={objectRef} object={object} />
      </>
    )
  }
  if (tab === 'yaml') return <YamlTab objectRef={objectRef} object={object} isRevealed={revealed} onReveal={onReveal} />
  if (tab === 'events' && isAllowed) return <Events objectRef={objectRef} object={object} />
  if (tab === 'logs' && isAllowed) return q === undefined ? <p className="empty">{t.noLogs}</p> : <Logs objectRef={objectRef} object={object} q={q} />
  if (tab === 'terminal' && isAllowed && isPod) {
    return (
      <Suspense fallback={<Loading />}>
        <Terminal objectRef={objectRef} object={object} />
      </Suspense>
    )
  }
  return null
}

/** Links to previews of changes to a template. */
function PreviewLinks({ objectRef: { apiVersion, namespace, name }, kind }: { objectRef: ObjectRef; kind: string }) {
  const t = useTextOf(propagationText)
  return (
    <>
      <Link className="button" href={`/plan${writeAddress({ apiVersion, kind, namespace, name })}`}>
        {t.whatIf}
      </Link>
      <Link className="button" href={`/steer/rebalance${writeAddress({ chosen: `${apiVersion} ${kind} ${namespace ?? ''} ${name}` })}`}>
        {t.rebalance}
      </Link>
    </>
  )
}

/** Terminal commands for the shown tab, and the name of the object. */
function Commands({ name, list }: { name: string; list: Command[] }) {
  const t = useTextOf(texts)
  const [copied, copy] = useCopied()
  return (
    <Popover label={t.asCommand}>
      {() =>
        [...list.map(({ tool, text }) => ({ text, label: t.copyAs(tool) })), { text: name, label: t.copyName }].map(({ text, label }) => (
          <div key={`${label} ${text}`} className="command">
            <code>{text}</code>
            <ActionButton aria-label={label} disabledReason={navigator.clipboard ? undefined : t.noClipboard} onClick={() => void copy(text)}>
              {copied === text ? t.copied : label}
            </ActionButton>
          </div>
        ))
      }
    </Popover>
  )
}
