import { Link } from 'wouter'
import { searchAddress } from '../../api/address'
import type { Kept } from '../../api/saved'
import { Query } from '../../parts/Query'
import { forgetAsked } from '../../prefs'
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
/** Number of previous queries shown. */
const ASKED = 8

/** The start page: common queries, saved searches, previous queries. */
export function Start({ user, saved, asked }: { user: string; saved: Kept; asked: string[] }) {
  const t = useText()
  const own = saved.searches ?? []
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
      {own.length > 0 && (
        <section aria-label={t.savedSearches}>
          <h2>
            <Link href="/saved">{t.savedSearches}</Link>
          </h2>
          <ul className="starters">
            {own.map(({ metadata, spec }) => (
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
      {asked.length > 0 && (
        <section aria-label={t.askedBefore}>
          <h2>
            {t.askedBefore}{' '}
            <button type="button" onClick={() => forgetAsked(user)}>
              {t.forget}
            </button>
          </h2>
          <ul className="starters">
            {asked.slice(0, ASKED).map((q) => (
              <li key={q}>
                <Link href={searchAddress({ q })}>
                  <Query text={q} />
                </Link>
              </li>
            ))}
          </ul>
        </section>
      )}
    </div>
  )
}
