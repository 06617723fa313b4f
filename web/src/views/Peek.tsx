// The drawer next to the results: the selected object in short, while the list keeps its place.
import { useEffect, useState } from 'react'
import { Link } from 'wouter'
import { objectAddress, type Tab } from '../api/address'
import { getJson, objectPath, reported } from '../api/client'
import { patiently } from '../api/kube'
import { keyOf } from '../api/pages'
import type { Hit, KubeObject } from '../api/types'
import { KindIcon } from '../icons/Icon'
import { Asking, useAsk } from '../parts/Asking'
import { ClusterName } from '../parts/ClusterName'
import { Pill } from '../parts/Pill'
import { Skeleton } from '../parts/Skeleton'
import { useText, useTextOf } from '../text'
import { object as texts } from '../text/object'
import { explain } from './object/explain'
import { Failures } from './object/Failures'
import { podsOf } from './object/facts'
import { isSecret, readWithheld } from './object/objects'
import { Overview } from './object/Overview'
import './object/object.css'

/** Milliseconds without a move after which the selected object is requested. */
const SETTLED = 120

export function Peek({ hit, onClose }: { hit: Hit | undefined; onClose: () => void }) {
  const t = useText()
  const settled = useSettled(hit)
  return (
    <section className="peek" aria-label={t.peek} onKeyDown={(event) => event.key === 'Escape' && onClose()}>
      <p className="acts">
        <button type="button" className="quiet" onClick={onClose}>
          {t.closePeek}
        </button>
      </p>
      {settled ? (
        <Asking>
          <Shown key={keyOf(settled)} hit={settled} />
        </Asking>
      ) : (
        <p className="empty">{t.nothingSelected}</p>
      )}
    </section>
  )
}

function useSettled(hit: Hit | undefined): Hit | undefined {
  const [settled, setSettled] = useState(hit)
  const key = hit && keyOf(hit)
  useEffect(() => {
    const timer = setTimeout(() => setSettled(hit), SETTLED)
    return () => clearTimeout(timer)
  }, [key])
  return settled
}

function Shown({ hit }: { hit: Hit }) {
  const t = useTextOf(texts)
  const { cluster, apiVersion, resource, namespace, name } = hit
  const ref = { cluster, apiVersion, resource, namespace, name }
  const object = useAsk(['object', ref], (signal) => (isSecret(ref) ? readWithheld(ref, signal) : patiently((patience) => getJson<KubeObject>(objectPath(ref), patience), signal)))
  const failure = reported(object.error)
  const tabs: Tab[] = ['yaml', 'events', 'related', 'history', ...(podsOf(ref, cluster) === undefined ? [] : (['logs'] as const))]
  return (
    <article className="resource">
      <h2>
        <KindIcon kind={hit.kind} /> <small>{hit.kind}</small> <Link href={objectAddress(ref)}>{name}</Link>
      </h2>
      <p>
        <Pill state={hit.status} /> <ClusterName name={cluster} />
        {namespace && <> · {t.namespaceIs(namespace)}</>}
      </p>
      <p className="acts">
        {tabs.map((tab) => (
          <Link key={tab} className="chip" href={objectAddress(ref, tab)}>
            {t.tabs[tab]}
          </Link>
        ))}
      </p>
      {failure !== undefined && <p role="alert">{explain(failure, cluster, t)}</p>}
      {!object.data && failure === undefined && <Skeleton />}
      {object.data && (
        <>
          <Failures refTo={ref} object={object.data} />
          <Overview refTo={ref} object={object.data} />
        </>
      )}
    </article>
  )
}
