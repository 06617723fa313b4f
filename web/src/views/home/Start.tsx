import { Link } from 'wouter'
import { searchAddress } from '../../api/address'
import type { SavedSearches } from '../../api/saved'
import { Query } from '../../parts/Query'
import { Star } from '../../parts/Star'
import { clearRecentQueries, toggleStar, usePrefs } from '../../prefs'
import { useText, type Text } from '../../text'

const STARTERS: [keyof Text['starters'], string][] = [
  ['unhealthy', 'is:unhealthy'],
  ['pods', 'kind:pod -status:Running,Completed,Succeeded'],
  ['restarting', 'kind:pod restarts:>3 sort:-restarts'],
  ['warnings', 'kind:event type:Warning sort:-last'],
  ['changed', 'kind:workload changed:<1h'],
  ['unscheduled', 'is:unscheduled'],
  ['nodes', 'kind:node -status:Ready'],
  ['deleted', 'is:deleted deleted:<1d'],
]
/** Maximum number of recent queries shown. */
const MAX_RECENT_QUERIES = 8

/** Start page of the search: common queries, saved searches and recent queries. */
export function Start({ user, saved, recentQueries }: { user: string; saved: SavedSearches; recentQueries: string[] }) {
  const t = useText()
  const starred = usePrefs().starred[user] ?? []
  const searches = saved.searches ?? []
  return (
    <div className="start">
      <ul className="starters" aria-label={t.startFrom}>
        {STARTERS.map(([name, q]) => (
          <li key={name}>
            <Link href={searchAddress({ q })} title={q}>
              {t.starters[name]}
            </Link>
          </li>
        ))}
      </ul>
      {searches.length > 0 && (
        <section aria-label={t.savedSearches}>
          <h2>
            <Link href="/saved">{t.savedSearches}</Link>
          </h2>
          <ul className="starters">
            {searches.map(({ metadata, spec }) => (
              <li key={metadata.name}>
                <Link href={searchAddress({ q: spec.query })} title={spec.query}>
                  {spec.title}
                </Link>
                {spec.owner !== user && <small> {t.by(spec.owner)}</small>}
              </li>
            ))}
          </ul>
        </section>
      )}
      {saved.error && <p role="alert">{saved.error}</p>}
      {recentQueries.length > 0 && (
        <section aria-label={t.recentQueries}>
          <h2>
            {t.recentQueries}{' '}
            <button type="button" onClick={() => clearRecentQueries(user)}>
              {t.clearRecentQueries}
            </button>
          </h2>
          <ul className="starters">
            {recentQueries.slice(0, Math.max(MAX_RECENT_QUERIES, starred.length)).map((q) => (
              <li key={q}>
                <Link href={searchAddress({ q })}>
                  <Query text={q} />
                </Link>{' '}
                <Star isOn={starred.includes(q)} label={t.starQuery(q)} onToggle={() => toggleStar(user, q)} />
              </li>
            ))}
          </ul>
        </section>
      )}
    </div>
  )
}
