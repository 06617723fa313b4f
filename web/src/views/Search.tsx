import { lazy, Suspense, useCallback, useEffect, useMemo, useState } from 'react'
import { Link, useLocation, useSearch as useParameters } from 'wouter'
import { readSearch, searchAddress } from '../api/address'
import { keyOf } from '../api/pages'
import { ofNow, timeOf, toggle } from '../api/query'
import { useSaved } from '../api/saved'
import { useSearch, type Live, type SearchState } from '../api/useSearch'
import type { Hit } from '../api/types'
import { ClusterName } from '../parts/ClusterName'
import { columnsNamed, isAsked, isOfKind, type Column } from '../parts/columns'
import { kindOf, numbers, shownColumns } from '../parts/kindColumns'
import { FacetRail } from '../parts/Facets'
import { age } from '../parts/format'
import { Hits } from '../parts/Hits'
import { SearchBox } from '../parts/SearchBox'
import { Skeleton } from '../parts/Skeleton'
import { Tools } from '../parts/Tools'
import { momentOf } from '../parts/time/times'
import { useIsNarrowScreen } from '../parts/useIsNarrowScreen'
import { currentPrefs, noteAsked, setPrefs, usePrefs } from '../prefs'
import { useText } from '../text'
import type { Marked } from './Bulk'
import { useSession } from './SignIn'
import { Start } from './home/Start'

const Bulk = lazy(() => import('./Bulk').then((view) => ({ default: view.Bulk })))
const Peek = lazy(() => import('./HitPreview').then((view) => ({ default: view.HitPreview })))
const Histogram = lazy(() => import('../parts/time/Histogram').then((view) => ({ default: view.Histogram })))
const Home = lazy(() => import('./home/Home').then((view) => ({ default: view.Home })))

/** The search page: the box, and below it the start page or the results. */
export function Search() {
  const t = useText()
  const [path, navigate] = useLocation()
  const view = readSearch(useParameters())
  const { q, columns, live } = view
  const home = path === '/'
  const { user } = useSession()
  const prefs = usePrefs()
  const saved = useSaved()
  const [paused, setPaused] = useState(false)
  const [selected, setSelected] = useState<Hit>()
  const [marked, setMarked] = useState<Marked>(NONE)
  const following: Live = !live ? 'off' : paused ? 'paused' : 'on'
  const kind = kindOf(q)
  const chosen = columns ?? (kind === undefined ? prefs.columns : prefs.columnsOf[kind])
  // Printed columns of one kind are requested together: which of them are shown depends on their values.
  const asked = chosen ? columnsNamed(chosen).map(({ name }) => name).filter(isAsked) : kind === undefined ? [] : ['print:*']
  const result = useSearch(home ? undefined : q, following, asked.sort().join())
  const shown = useColumns(chosen, kind, result)

  // Rounded, so that rows are not rendered again with each result.
  const moment = momentOf(q, Math.floor(Date.now() / 10_000) * 10)

  // The callbacks below outlive a render, so they read the current address.
  const go = useCallback(
    (changed: { q?: string; columns?: string[] | undefined; live?: boolean; peek?: boolean }, replace = false) => {
      const now = window.location.pathname === '/search' ? readSearch(window.location.search) : { q: '' }
      navigate(searchAddress({ ...now, ...changed }), { replace })
    },
    [navigate],
  )
  const ask = useCallback(
    (query: string, typing: boolean) => {
      if (!typing) noteAsked(user, query)
      go({ q: query }, typing && window.location.pathname === '/search')
    },
    [go, user],
  )
  const mark = useCallback((hit: Hit) => setMarked((before) => toggled(before, hit)), [])
  const peek = useCallback((shown: boolean) => go({ peek: shown }, true), [go])
  const edit = useCallback((query: string) => go({ q: query }), [go])
  const note = useCallback(() => noteAsked(user, q), [user, q])

  // A selection belongs to its query.
  useEffect(() => setMarked(NONE), [q])

  useEffect(() => {
    document.title = home ? 'Crowsnest' : `${q || t.search} · Crowsnest`
  }, [home, q, t])

  return (
    <>
      <h1 className="visually-hidden">{home ? t.home : t.search}</h1>
      {!home && (
        <a className="skip" href="#results">
          {t.skipToResults}
        </a>
      )}
      <SearchBox value={home ? '' : q} notices={home ? [] : result.notices} asked={prefs.asked[user] ?? []} onAsk={ask} />
      {home ? (
        <>
          <Suspense fallback={<Skeleton />}>
            <Home />
          </Suspense>
          <Start user={user} saved={saved} asked={prefs.asked[user] ?? []} />
        </>
      ) : (
        <>
          <Past q={q} />
          <div className="answer">
            <Summary result={result} q={q} />
            <Tools
              q={q}
              result={result}
              columns={shown}
              onColumns={(chosen) => {
                keepColumns(kind, chosen)
                go({ columns: chosen }, true)
              }}
              live={following}
              onLive={(next) => {
                setPaused(next === 'paused')
                go({ live: next !== 'off' }, true)
              }}
              onAsk={edit}
              onSaved={saved.reload}
            />
          </div>
          <Grouped result={result} q={q} />
          {marked.size > 0 && (
            <Suspense fallback={null}>
              <Bulk marked={marked} onClear={() => setMarked(NONE)} />
            </Suspense>
          )}
          {moment === undefined && (
            <Suspense fallback={<div className="over-time" />}>
              <Histogram q={q} onAsk={edit} />
            </Suspense>
          )}
          <div className={view.peek ? 'results peeking' : 'results'}>
            <Hits
              pages={result.pages}
              total={result.done?.total}
              current={result.of === q}
              complete={result.done !== undefined}
              columns={shown}
              q={q}
              changed={result.changed}
              now={moment}
              look={result.look}
              onAsk={edit}
              onOpen={note}
              peek={view.peek === true}
              onPeek={peek}
              onSelect={setSelected}
              marked={marked}
              onMark={mark}
            />
            {view.peek && (
              <Suspense fallback={null}>
                <Peek hit={selected} onClose={() => peek(false)} />
              </Suspense>
            )}
            {/* After the results in the order of focus: there may be a hundred values. */}
            <FacetRail facets={result.facets} q={q} onAsk={edit} />
          </div>
        </>
      )}
    </>
  )
}

const NONE: Marked = new Map()

/** Marks a hit, or takes its mark away. */
function toggled(before: Marked, hit: Hit): Marked {
  const after = new Map(before)
  if (!after.delete(keyOf(hit))) after.set(keyOf(hit), hit)
  return after
}

/** The columns of the result; the same array while they stay the same. */
function useColumns(chosen: string[] | undefined, kind: string | undefined, { pages }: SearchState): Column[] {
  const hits = pages.pages[0]?.hits ?? []
  const names = shownColumns(chosen, kind, hits, useIsNarrowScreen())
  const numeric = numbers(names, hits)
  return useMemo(() => columnsNamed(names).map((column) => (numeric.includes(column.name) ? { ...column, number: true } : column)), [names.join(), numeric.join()])
}

/** Keeps the chosen columns for the next query about this kind, or about several; `undefined`: the defaults. */
function keepColumns(kind: string | undefined, chosen: string[] | undefined): void {
  const { columnsOf } = currentPrefs()
  if (kind === undefined) return setPrefs({ columns: chosen?.filter((name) => !isOfKind(name)) })
  const { [kind]: _before, ...others } = columnsOf
  setPrefs({ columnsOf: chosen ? { ...others, [kind]: chosen } : others })
}

/** Shown while the results are those of another time. */
function Past({ q }: { q: string }) {
  const t = useText()
  const time = timeOf(q)
  if (time === undefined) return null
  return (
    <p role="note" className="past">
      {t.past(time)} <Link href={searchAddress({ q: ofNow(q) })}>{t.backToNow}</Link>
    </p>
  )
}

function Summary({ result, q }: { result: SearchState; q: string }) {
  const t = useText()
  const { done, error, notices, skipped, pages } = result
  return (
    <div className="summary">
      <p role="status">
        {error ? (
          <span className="bad">{error}</span>
        ) : done ? (
          t.found(done.total, done.totalRelation === 'gte', done.tookMs)
        ) : (
          t.searching(pages.pages[0]?.count ?? 0)
        )}
      </p>
      {notices.map((notice) => (
        <p key={notice.message} className="notice">
          {notice.message}
        </p>
      ))}
      {(done?.behind ?? 0) > BEHIND && <p className="notice late">{t.behind(done?.behind ?? 0)}</p>}
      {skipped.length > 0 && (
        <p className="bad">
          {t.notComplete}
          {skipped.map(({ cluster, reason, ageSeconds }) => (
            <span key={cluster}>
              {' '}
              <ClusterName name={cluster} /> ({reason}
              {ageSeconds !== undefined && `, ${t.asOf(age(ageSeconds))}`})
            </span>
          ))}
        </p>
      )}
      {done?.total === 0 && (
        <>
          <p>
            {t.nothing(q)} {t.rightsOnly}
          </p>
          <Others label={t.didYouMean} queries={done.didYouMean ?? []} />
          <Others label={t.wider} queries={(done.wider ?? []).map(({ query }) => query)} />
        </>
      )}
    </div>
  )
}

/** Number of changes that are not searchable yet from which on this is reported; a few are normal. */
const BEHIND = 1_000

function Others({ label, queries }: { label: string; queries: string[] }) {
  if (queries.length === 0) return null
  return (
    <p>
      {label}{' '}
      {queries.map((query) => (
        <span key={query}>
          <Link href={searchAddress({ q: query })}>
            <code>{query}</code>
          </Link>{' '}
        </span>
      ))}
    </p>
  )
}

/** Hits per group, if the query contains `group:`, each as a link. */
function Grouped({ result: { groups }, q }: { result: SearchState; q: string }) {
  const t = useText()
  if (!groups || groups.values.length === 0) return null
  return (
    <section className="groups" aria-label={t.groups(groups.field)}>
      {groups.values.slice(0, GROUPS).map(({ value, count }) => (
        <Link key={value} href={searchAddress({ q: toggle(q, groups.field, value) })}>
          {value || '—'} <b>{count.toLocaleString(t.locale)}</b>
        </Link>
      ))}
      {groups.values.length + groups.more > GROUPS && <span>{t.moreGroups(groups.values.length - GROUPS + groups.more)}</span>}
    </section>
  )
}

/** Number of groups shown, the largest first. */
const GROUPS = 40
