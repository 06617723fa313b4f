import { Link } from 'wouter'
import { objectAddress, type Tab } from '../../api/address'
import { getJson, objectPath, viewErrorOf, type ObjectRef } from '../../api/client'
import { withTimeout } from '../../api/kube'
import type { KubeObject } from '../../api/types'
import { KindIcon } from '../../icons/Icon'
import { usePolledQuery } from '../../parts/polledQuery'
import { ClusterLink } from '../../parts/ClusterLink'
import { formatAgeSince, formatWeekdayTime } from '../../parts/format'
import { Pill } from '../../parts/Pill'
import { Skeleton } from '../../parts/Skeleton'
import { useTextOf } from '../../text'
import { objectText as texts } from '../../text/object'
import { describeError } from './describeError'
import { Failures } from './Failures'
import { podsOf } from './facts'
import { isSecret, readPastObject, readSecretWithoutValues, type VersionSelector } from './objects'
import { Overview } from './Overview'
import './object.css'

export interface SummarizedObject extends ObjectRef {
  kind: string
  /** Status as kubectl prints it, if known. */
  status?: string | undefined
}

interface ObjectSummaryProps {
  object: SummarizedObject
  /** The version to show; undefined: the current object. */
  past?: VersionSelector | undefined
}

/** Summary of an object, beside a list or a graph. */
export function ObjectSummary({ object: summarized, past }: ObjectSummaryProps) {
  const t = useTextOf(texts)
  const { cluster, apiVersion, resource, namespace, name } = summarized
  const ref = { cluster, apiVersion, resource, namespace, name }
  const readCurrent = (signal: AbortSignal) => (isSecret(ref) ? readSecretWithoutValues(ref, signal) : withTimeout((timeoutSignal) => getJson<KubeObject>(objectPath(ref), timeoutSignal), signal))
  const readShown = async (signal: AbortSignal) => (past === undefined ? undefined : await readPastObject(ref, past, signal)) ?? { object: await readCurrent(signal), version: undefined }
  const object = usePolledQuery(['shown object', ref, past], readShown, past === undefined ? 5_000 : false)
  const version = object.data?.version
  const failure = viewErrorOf(object.error)
  const tabs: Tab[] = ['yaml', 'events', 'related', 'history', ...(podsOf(ref, cluster) === undefined ? [] : (['logs'] as const))]
  return (
    <article className="resource">
      <h2>
        <KindIcon kind={summarized.kind} apiVersion={apiVersion} /> <small>{summarized.kind}</small> <Link href={objectAddress(ref)}>{name}</Link>
      </h2>
      <p>
        <Pill state={summarized.status} /> <ClusterLink name={cluster} />
        {namespace && (
          <>
            {' · '}
            <Link href={objectAddress({ cluster, apiVersion: 'v1', resource: 'namespaces', name: namespace })}>{t.namespaceIs(namespace)}</Link>
          </>
        )}
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
          {past !== undefined && (
            <p className="notice" role="note">
              {version === undefined ? t.noVersionAt : version.deleted ? t.lastVersion(formatAgeSince(version.until)) : t.versionAt(formatWeekdayTime(new Date(version.from)))}
            </p>
          )}
          <Failures objectRef={ref} object={object.data.object} isPast={version !== undefined} />
          <Overview objectRef={ref} object={object.data.object} />
        </>
      )}
    </article>
  )
}
