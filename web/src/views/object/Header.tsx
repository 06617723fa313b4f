import { keepPreviousData, useQuery } from '@tanstack/react-query'
import { Link } from 'wouter'
import { objectAddress, searchAddress, type Tab } from '../../api/address'
import { CONTROL_PLANE, getJson, groupOf, type ObjectRef } from '../../api/client'
import type { Hit, KubeObject } from '../../api/types'
import { API } from '../../api/searchApi'
import { KindIcon } from '../../icons/Icon'
import { ClusterLink } from '../../parts/ClusterLink'
import { ClusterName } from '../../parts/ClusterName'
import { formatAgeSince } from '../../parts/format'
import { Pill } from '../../parts/Pill'
import { GLYPHS, toneOf, toneOfReady } from '../../parts/status'
import { useTextOf } from '../../text'
import { objectText as texts } from '../../text/object'
import { headlineOf } from './headline'
import { copiesQuery } from './objects'

/** Maximum number of copies that are requested, and that are shown. */
const MAX_COPIES = 100
const MAX_SHOWN_COPIES = 12
/** Time after which a change of the object is searchable. */
const INDEX_DELAY_MS = 5_000
/** Interval of searches for copies while the object itself does not change. */
const COPIES_INTERVAL_MS = 60_000

interface HeaderProps {
  objectRef: ObjectRef
  object: KubeObject | undefined
  kind: string
  /** True if the object is propagated, so that objects of the same name in other clusters are its copies. */
  isPropagated: boolean
  tab: Tab
}

/** Header of the object page: identity, state with the reason, and copies in other clusters. */
export function Header({ objectRef, object, kind, isPropagated, tab }: HeaderProps) {
  const t = useTextOf(texts)
  const { cluster, apiVersion, namespace, name } = objectRef
  const copies = useQuery({
    queryKey: ['copies', objectRef, object?.metadata.resourceVersion],
    queryFn: ({ signal }) => getJson<{ hits: Hit[] }>(`${API}/query?limit=${MAX_COPIES}&facets=&q=${encodeURIComponent(copiesQuery(objectRef))}`, signal),
    enabled: object !== undefined,
    placeholderData: keepPreviousData,
    refetchInterval: ({ state }) => (state.dataUpdateCount < 2 ? INDEX_DELAY_MS : COPIES_INTERVAL_MS),
  })
  const hits = copies.data?.hits ?? []
  const state = object && headlineOf(object, hits.find((hit) => hit.cluster === cluster))
  return (
    <>
      <h1>
        <KindIcon kind={kind} apiVersion={apiVersion} /> <small>{kind}</small> {name}
      </h1>
      <p className="identity">
        {state && <Pill state={state.state} tone={state.tone} title={state.reason} />} <ClusterLink name={cluster} />
        {namespace && (
          <>
            {' · '}
            <Link href={objectAddress({ cluster, apiVersion: 'v1', resource: 'namespaces', name: namespace })}>{t.namespaceIs(namespace)}</Link>
          </>
        )}
        {groupOf(apiVersion) && <> · {apiVersion}</>}
        {object && <> · {t.ageText(formatAgeSince(object.metadata.creationTimestamp))}</>}
      </p>
      {state?.reason && <p className={`why ${state.tone}`}>{state.reason}</p>}
      {isPropagated && <Copies objectRef={objectRef} hits={hits} tab={tab} />}
    </>
  )
}

/** Links to the copies in other clusters and to the template, with their state: `member1 2/2`. */
function Copies({ objectRef, hits, tab }: { objectRef: ObjectRef; hits: Hit[]; tab: Tab }) {
  const t = useTextOf(texts)
  const others = hits.filter(({ cluster }) => cluster !== objectRef.cluster)
  if (others.length === 0) return null
  const sorted = [...others].sort((a, b) => Number(b.cluster === CONTROL_PLANE) - Number(a.cluster === CONTROL_PLANE) || a.cluster.localeCompare(b.cluster))
  return (
    <nav className="copies" aria-label={t.copies}>
      {sorted.slice(0, MAX_SHOWN_COPIES).map((hit) => {
        const tone = hit.ready ? toneOfReady(hit.ready) : toneOf(hit.status)
        return (
          <Link key={hit.cluster} className={`chip ${tone}`} href={objectAddress(hit, tab)} title={hit.status}>
            <i aria-hidden="true">{GLYPHS[tone]}</i> <ClusterName name={hit.cluster} /> {hit.ready ?? hit.status}
          </Link>
        )
      })}
      {sorted.length > MAX_SHOWN_COPIES && <Link href={searchAddress({ q: copiesQuery(objectRef) })}>{t.moreCopies(sorted.length - MAX_SHOWN_COPIES)}</Link>}
    </nav>
  )
}
