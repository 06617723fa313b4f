import { Link } from 'wouter'
import { objectAddress, type Tab } from '../../api/address'
import { getJson, objectPath, viewErrorOf, type ObjectRef } from '../../api/client'
import { withTimeout } from '../../api/kube'
import type { KubeObject } from '../../api/types'
import { KindIcon } from '../../icons/Icon'
import { usePolledQuery } from '../../parts/polledQuery'
import { ClusterName } from '../../parts/ClusterName'
import { Pill } from '../../parts/Pill'
import { Skeleton } from '../../parts/Skeleton'
import { useTextOf } from '../../text'
import { objectText as texts } from '../../text/object'
import { describeError } from './describeError'
import { Failures } from './Failures'
import { podsOf } from './facts'
import { isSecret, readSecretWithoutValues } from './objects'
import { Overview } from './Overview'
import './object.css'

export interface SummarizedObject extends ObjectRef {
  kind: string
  /** Status as kubectl prints it, if known. */
  status?: string | undefined
}

/** Summary of an object, beside a list or a graph. */
export function ObjectSummary({ object: summarized }: { object: SummarizedObject }) {
  const t = useTextOf(texts)
  const { cluster, apiVersion, resource, namespace, name } = summarized
  const ref = { cluster, apiVersion, resource, namespace, name }
  const object = usePolledQuery(['object', ref], (signal) => (isSecret(ref) ? readSecretWithoutValues(ref, signal) : withTimeout((timeoutSignal) => getJson<KubeObject>(objectPath(ref), timeoutSignal), signal)))
  const failure = viewErrorOf(object.error)
  const tabs: Tab[] = ['yaml', 'events', 'related', 'history', ...(podsOf(ref, cluster) === undefined ? [] : (['logs'] as const))]
  return (
    <article className="resource">
      <h2>
        <KindIcon kind={summarized.kind} /> <small>{summarized.kind}</small> <Link href={objectAddress(ref)}>{name}</Link>
      </h2>
      <p>
        <Pill state={summarized.status} /> <ClusterName name={cluster} />
        {namespace && <> · {t.namespaceIs(namespace)}</>}
      </p>
      <p className="acts">
        {tabs.map((tab) => (
          <Link key={tab} className="chip" href={objectAddress(ref, tab)}>
            {t.tabs[tab]}
          </Link>
        ))}
      </p>
      {failure !== undefined && <p role="alert">{describeError(failure, cluster, t)}</p>}
      {!object.data && failure === undefined && <Skeleton />}
      {object.data && (
        <>
          <Failures objectRef={ref} object={object.data} />
          <Overview objectRef={ref} object={object.data} />
        </>
      )}
    </article>
  )
}
