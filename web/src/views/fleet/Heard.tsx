import { age } from '../../parts/format'
import { useTextOf } from '../../text'
import { fleetText } from '../../text/fleet'

/** Age from which on a cluster's data is marked as stale: the cache receives events or bookmarks every few seconds. */
const STALE_AFTER = 60

/** Age of a cluster's data, marked if it is stale. */
export function Heard({ seconds }: { seconds: number | undefined }) {
  const t = useTextOf(fleetText)
  if (seconds === undefined) return <span className="bad">{t.never}</span>
  return seconds > STALE_AFTER ? <span className="bad">{t.stale(age(seconds))}</span> : <>{t.ago(age(seconds))}</>
}
