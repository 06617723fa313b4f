import { keepPreviousData, useQuery } from '@tanstack/react-query'
import { Link } from 'wouter'
import { objectAddress, searchAddress, type Tab } from '../../api/address'
import { CONTROL_PLANE, getJson, groupOf, type ObjectRef } from '../../api/client'
import type { Hit, KubeObject } from '../../api/types'
import { API } from '../../api/useSearch'
import { KindIcon } from '../../icons/Icon'
import { ClusterName } from '../../parts/ClusterName'
import { since } from '../../parts/format'
import { Pill } from '../../parts/Pill'
import { toneOf, toneOfReady } from '../../parts/status'
import { useTextOf } from '../../text'
import { object as texts } from '../../text/object'
import { headline } from './headline'
import { copiesOf } from './objects'

/** Copies that are requested, and copies that are shown. */
const MOST = 100
const SHOWN = 12
/** Milliseconds after which the index has a change of the object. */
const INDEXED_AFTER = 5_000
/** Milliseconds between searches while the object does not change: its copies can change without it. */
const COPIES_EVERY = 60_000

interface HeaderProps {
  refTo: ObjectRef
  object: KubeObject | undefined
  kind: string
  /** It is propagated, so its namesakes are copies. */
  propagated: boolean
  tab: Tab
}

/** What the object is, its state with the reason, and its copies in clusters. */
export function Header({ refTo, object, kind, propagated, tab }: HeaderProps) {
  const t = useTextOf(texts)
  const { cluster, apiVersion, namespace, name } = refTo
  const copies = useQuery({
    queryKey: ['copies', refTo, object?.metadata.resourceVersion],
    queryFn: ({ signal }) => getJson<{ hits: Hit[] }>(`${API}/query?limit=${MOST}&facets=&q=${encodeURIComponent(copiesOf(refTo))}`, signal),
    enabled: object !== undefined,
    placeholderData: keepPreviousData,
    refetchInterval: ({ state }) => (state.dataUpdateCount < 2 ? INDEXED_AFTER : COPIES_EVERY),
  })
  const hits = copies.data?.hits ?? []
  const state = object && headline(object, hits.find((hit) => hit.cluster === cluster))
  return (
    <>
      <h1>
        <KindIcon kind={kind} /> <small>{kind}</small> {name}
      </h1>
      <p className="identity">
        {state && <Pill state={state.state} tone={state.tone} title={state.why} />} <ClusterName name={cluster} />
        {namespace && <> · {t.namespaceIs(namespace)}</>}
        {groupOf(apiVersion) && <> · {apiVersion}</>}
        {object && <> · {t.old(since(object.metadata.creationTimestamp))}</>}
      </p>
      {state?.why && <p className={`why ${state.tone}`}>{state.why}</p>}
      {propagated && <Copies refTo={refTo} hits={hits} tab={tab} />}
    </>
  )
}

/** `member1 2/2`: the copy in each cluster, and the template. */
function Copies({ refTo, hits, tab }: { refTo: ObjectRef; hits: Hit[]; tab: Tab }) {
  const t = useTextOf(texts)
  const others = hits.filter(({ cluster }) => cluster !== refTo.cluster)
  if (others.length === 0) return null
  const sorted = [...others].sort((a, b) => Number(b.cluster === CONTROL_PLANE) - Number(a.cluster === CONTROL_PLANE) || a.cluster.localeCompare(b.cluster))
  return (
    <nav className="copies" aria-label={t.copies}>
      {sorted.slice(0, SHOWN).map((hit) => {
        const tone = hit.ready ? toneOfReady(hit.ready) : toneOf(hit.status)
        return (
          <Link key={hit.cluster} className={`chip ${tone}`} href={objectAddress(hit, tab)} title={hit.status}>
            <ClusterName name={hit.cluster} /> {hit.ready ?? hit.status}
          </Link>
        )
      })}
      {sorted.length > SHOWN && <Link href={searchAddress({ q: copiesOf(refTo) })}>{t.moreCopies(sorted.length - SHOWN)}</Link>}
    </nav>
  )
}
