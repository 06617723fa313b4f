import { formatAge } from '../../parts/format'
import { useTextOf } from '../../text'
import { fleetText } from '../../text/fleet'

/** Older data is marked as stale: the cache normally receives events or bookmarks of a cluster every few seconds. */
const STALE_AFTER_SECONDS = 60

/** Time since the last event from a cluster, marked if the cluster's data is stale. */
export function DataAge({ seconds }: { seconds: number | undefined }) {
  const t = useTextOf(fleetText)
  if (seconds === undefined) return <span className="bad">{t.never}</span>
  return seconds > STALE_AFTER_SECONDS ? <span className="bad">{t.stale(formatAge(seconds))}</span> : <>{t.ago(formatAge(seconds))}</>
}
