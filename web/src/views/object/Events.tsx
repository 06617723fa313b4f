import { useQuery } from '@tanstack/react-query'
import { clusterRoot, getJson, viewErrorOf, type ObjectRef } from '../../api/client'
import { lastOccurrence, newestFirst } from '../../api/involved'
import { withTimeout } from '../../api/kube'
import type { KubeEvent, KubeObject } from '../../api/types'
import { formatAgeSince } from '../../parts/format'
import { Pill } from '../../parts/Pill'
import { Skeleton } from '../../parts/Skeleton'
import { Table } from '../../parts/Table'
import { useTextOf } from '../../text'
import { objectText as texts } from '../../text/object'
import { describeError } from './describeError'

/** Events about an object, in its cluster. */
export function Events({ objectRef: { cluster }, object }: { objectRef: ObjectRef; object: KubeObject }) {
  const t = useTextOf(texts)
  const { namespace, uid } = object.metadata
  const scope = namespace ? `/namespaces/${namespace}` : ''
  const selector = encodeURIComponent(`involvedObject.uid=${uid ?? ''}`)
  const events = useQuery({
    queryKey: ['events', cluster, uid],
    queryFn: ({ signal }) => withTimeout((timeoutSignal) => getJson<{ items: KubeEvent[] }>(`${clusterRoot(cluster)}/api/v1${scope}/events?fieldSelector=${selector}`, timeoutSignal), signal),
    refetchInterval: 5_000,
  })
  if (viewErrorOf(events.error) !== undefined) return <p role="alert">{describeError(events.error, cluster, t)}</p>
  if (!events.data) return <Skeleton />
  if (events.data.items.length === 0) return <p className="empty">{t.noEvents}</p>
  const sorted = [...events.data.items].sort(newestFirst)
  return (
    <Table caption label={t.tabs.events} headers={t.eventColumns}>
      {sorted.map((event) => (
        <tr key={event.metadata.uid}>
          <td title={lastOccurrence(event)}>{formatAgeSince(lastOccurrence(event))}</td>
          <td>
            <Pill state={event.type} tone={event.type === 'Warning' ? 'warn' : 'idle'} />
          </td>
          <td>{event.reason}</td>
          <td className="number">{event.count ?? 1}</td>
          <td>{event.source?.component ?? event.reportingComponent}</td>
          <td>{event.message}</td>
        </tr>
      ))}
    </Table>
  )
}
