import { memo, Suspense, useCallback, useDeferredValue, useEffect, useMemo, useState } from 'react'
import { Link, useLocation, useSearch as useParameters } from 'wouter'
import { queryAt, readSearch, searchAddress, type SearchView } from '../api/address'
import { keyOf } from '../api/pages'
import { withoutTime, timeOf, toggleTerm } from '../api/query'
import { useSavedSearches } from '../api/saved'
import { useDefinitionPaths } from '../api/useDefinitionPaths'
import type { Live, SearchState } from '../api/searchState'
import { useSearch } from '../api/useSearch'
import type { Groups, Hit } from '../api/types'
import { lazyPart } from '../parts/LazyPart'
import { findColumns, isKindSpecific, type Column } from '../parts/columns'
import { kindQueryOf, onlyKindOf, numericColumns, requestedColumnNames, shownColumns, viewOfQuery, wideColumns } from '../parts/kindColumns'
import { FacetRail } from '../parts/Facets'
import { Hits } from '../parts/Hits'
import { SearchBox } from '../parts/SearchBox'
import { Skeleton } from '../parts/Skeleton'
import { SkippedClusters } from '../parts/SkippedClusters'
import { Tools } from '../parts/Tools'
import { momentOf, pastRangeOf } from '../parts/time/times'
import { useIsNarrowScreen } from '../parts/useIsNarrowScreen'
import { currentPrefs, addRecentQuery, recentQueriesOf, setPrefs, setWide, usePrefs, type Prefs } from '../prefs'
import { useText } from '../text'
import type { MarkedHits } from './Bulk'
import { MAX_OBJECTS, nextSelectionStep } from './bulkSelection'
import { useSession } from './SignIn'
import { Start } from './home/Start'

const Bulk = lazyPart(() => import('./Bulk'), (view) => view.Bulk)
const Preview = lazyPart(() => import('./HitPreview'), (view) => view.HitPreview)
const Histogram = lazyPart(() => import('../parts/time/Histogram'), (view) => view.Histogram)
/** Loads the content of the start page. */
export const loadHome = () => import('./home/Home')
const Home = lazyPart(loadHome, (view) => view.Home)

/** The search page: the box, and below it the start page or the results. */
export function Search() {
  const t = useText()
  const [path, navigate] = useLocation()
  const view = readSearch(useParameters())
  const { q, live } = view
  const isHome = path === '/'
  const { user } = useSession()
  const prefs = usePrefs()
  const recentQueries = recentQueriesOf(prefs, user)
  const saved = useSavedSearches()
  const [paused, setPaused] = useState(false)
  const [selected, setSelected] = useState<Hit>()
  const [marked, setMarked] = useState<MarkedHits>(NO_HITS)
  const liveState: Live = !live ? 'off' : paused ? 'paused' : 'on'
  const { kind, chosen, isWide } = tableOf(view, prefs)
  const definitionPaths = useDefinitionPaths(isWide ? kindQueryOf(q) : undefined, q)
  const widePaths = isWide ? definitionPaths : undefined
  const result = useSearch(isHome ? undefined : q, liveState, requestedColumnNames(chosen, kind, widePaths).join())
  const visibleColumns = useColumns(chosen, kind, widePaths, result)
  const { facets, countedQuery } = result
  const total = result.done?.total
  // The rows are painted before the facets and the tools. While the facets of the shown results are being counted, the previous ones stay.
  const facetQuery = result.query === q ? (countedQuery ?? q) : q
  const rail = useDeferredValue(useMemo(() => ({ facets, q: facetQuery }), [facets, facetQuery]))
  const tools = useDeferredValue(useMemo(() => ({ q, facets, total }), [q, facets, total]))

  // Rounded to ten seconds, so that rows are not rendered again with each result.
  const moment = momentOf(q, Math.floor(Date.now() / 10_000) * 10)

  // Callbacks read the current address, because their identity stays the same across renders.
  const updateView = useCallback(
    (changed: Partial<SearchView>, replace = false) => {
      const now = window.location.pathname === '/search' ? readSearch(window.location.search) : { q: '' }
      navigate(searchAddress({ ...viewOfQuery(now, changed.q ?? now.q), ...changed }), { replace })
    },
    [navigate],
  )
  /** The columns that this page will request for a query that is being typed. The paths of another kind are read when its query is shown. */
  const typedColumns = (query: string) => {
    const table = tableOf(viewOfQuery(view, query), prefs)
    const paths = kindQueryOf(query) === kindQueryOf(q) ? definitionPaths : []
    return requestedColumnNames(table.chosen, table.kind, table.isWide ? paths : undefined).join()
  }
  const runQuery = (query: string, typing: boolean) => {
    const show = () => updateView({ q: query }, typing && window.location.pathname === '/search')
    if (typing) return result.prepare(query, typedColumns(query), show)
    // The results of a query that is still being typed must not replace those of the submitted one.
    result.cancelPrepared(query)
    addRecentQuery(user, query)
    show()
  }
  const toggleHit = useCallback((hit: Hit) => setMarked((before) => toggleMark(before, hit)), [])
  const setPreview = useCallback((isShown: boolean) => updateView({ peek: isShown }, true), [updateView])
  const setQuery = useCallback((query: string) => updateView({ q: query }), [updateView])
  const editQuery = useCallback((edit: (query: string) => string) => updateView({ q: edit(readSearch(window.location.search).q) }), [updateView])
  const setColumns = useCallback(
    (names: string[] | undefined) => {
      saveColumns(kind, names)
      // The chosen columns include those of a wide table.
      if (kind !== undefined) setWide(kind, false)
      updateView({ columns: names, wide: undefined }, true)
    },
    [kind, updateView],
  )
  const setWideTable = useCallback(
    (wide: boolean) => {
      if (kind === undefined) return
      setWide(kind, wide)
      updateView({ wide: wide || undefined }, true)
    },
    [kind, updateView],
  )
  // A copied address shows the same table to other users.
  const isInAddress = isHome || ((view.columns !== undefined || chosen === undefined) && (view.wide === true) === isWide)
  useEffect(() => {
    // The address may have changed since the page was rendered.
    if (!isInAddress && queryAt(window.location) === q) updateView({ columns: chosen, wide: isWide || undefined }, true)
  }, [isInAddress, q, chosen, isWide, updateView])
  const setLive = useCallback(
    (next: Live) => {
      setPaused(next === 'paused')
      updateView({ live: next !== 'off' }, true)
    },
    [updateView],
  )
  const recordQuery = useCallback(() => addRecentQuery(user, q), [user, q])

  // A selection belongs to its query.
  useEffect(() => setMarked(NO_HITS), [q])
  const selectAll = useSelectAll(q, result, setMarked)

  useEffect(() => {
    document.title = isHome ? 'Crowsnest' : `${q || t.search} · Crowsnest`
  }, [isHome, q, t])

  return (
    <>
      <h1 className="visually-hidden">{isHome ? t.home : t.search}</h1>
      {!isHome && (
        <a className="skip" href="#results">
          {t.skipToResults}
        </a>
      )}
      <SearchBox value={isHome ? '' : q} notices={isHome ? [] : result.notices} recentQueries={recentQueries} outcome={result.done ?? result.error} onQuery={runQuery} onCancel={result.cancelPrepared} />
      {isHome ? (
        <>
          <Suspense fallback={<Skeleton />}>
            <Home />
          </Suspense>
          <Start user={user} saved={saved} recentQueries={recentQueries} />
        </>
      ) : (
        <>
          <PastNotice q={q} />
          <div className="answer">
            <Summary q={q} done={result.done} error={result.error ?? result.pageError} notices={result.notices} skipped={result.skipped} received={result.pages.pages[0]?.count ?? 0} />
            <Tools
              {...tools}
              // Not deferred: a click on the checkbox of a column shows at once.
              columns={visibleColumns}
              isFollowing={result.isFollowing}
              pendingChanges={result.pendingChanges}
              onColumns={setColumns}
              isWide={kind === undefined ? undefined : isWide}
              onWide={setWideTable}
              live={liveState}
              onLive={setLive}
              onQuery={setQuery}
              onSaved={saved.reload}
              onSelectAll={selectAll}
              maxSelected={MAX_OBJECTS}
            />
          </div>
          <GroupCounts groups={result.groups} q={q} />
          {marked.size > 0 && (
            <Suspense fallback={null}>
              <Bulk marked={marked} onClear={() => setMarked(NO_HITS)} />
            </Suspense>
          )}
          {(moment === undefined || pastRangeOf(q) !== undefined) && (
            <Suspense fallback={<div className="over-time" />}>
              <Histogram q={q} onQuery={setQuery} />
            </Suspense>
          )}
          <div className={view.peek ? 'results peeking' : 'results'}>
            <Hits
              pages={result.pages}
              total={result.done?.total}
              isCurrent={result.query === q}
              isComplete={result.done !== undefined}
              isBusy={result.error === undefined && (result.query !== q || result.done === undefined)}
              columns={visibleColumns}
              q={q}
              changed={result.changedKeys}
              now={moment}
              onVisibleRows={result.setVisibleRows}
              onQuery={setQuery}
              onOpen={recordQuery}
              peek={view.peek === true}
              onPeek={setPreview}
              onSelect={setSelected}
              marked={marked}
              onMark={toggleHit}
            />
            {view.peek && (
              <Suspense fallback={null}>
                <Preview hit={selected} moment={moment} onClose={() => setPreview(false)} />
              </Suspense>
            )}
            {/* Facets follow the results in the order of focus, because there may be a hundred values. */}
            <FacetRail facets={rail.facets} q={rail.q} onEdit={editQuery} />
          </div>
        </>
      )}
    </>
  )
}

/**
 * The only kind of a query, the columns that the user has chosen for its table, and whether the table has all printed columns. The address has
 * precedence over the preferences: one with columns has a wide table only with `wide`.
 */
function tableOf({ q, columns, wide }: SearchView, prefs: Prefs) {
  const kind = onlyKindOf(q)
  const chosen = columns ?? (kind === undefined ? prefs.columns : prefs.columnsOf[kind])
  return { kind, chosen, isWide: kind !== undefined && (wide ?? (columns === undefined && prefs.wideKinds.includes(kind))) }
}

const NO_HITS: MarkedHits = new Map()
const NO_PAGE: Hit[] = []

/** Marks or unmarks a hit. */
function toggleMark(before: MarkedHits, hit: Hit): MarkedHits {
  const after = new Map(before)
  if (!after.delete(keyOf(hit))) after.set(keyOf(hit), hit)
  return after
}

/**
 * Returns a function that selects all hits of the result, and before that loads those whose page is not loaded. If a page cannot be loaded, the
 * loaded hits are selected; the result shows the error.
 */
function useSelectAll(q: string, { pages, done, failedPages, setVisibleRows }: ReturnType<typeof useSearch>, onSelected: (hits: MarkedHits) => void): () => void {
  /** The query of the last click whose hits are not all loaded, and the number of pages that had failed before. */
  const [pending, setPending] = useState<{ q: string; failedPages: number }>()
  useEffect(() => {
    if (pending?.q !== q) return setPending(undefined)
    if (!done) return
    const step = nextSelectionStep(pages, failedPages > pending.failedPages)
    if ('load' in step) return setVisibleRows(done.total - 1, done.total - 1)
    setPending(undefined)
    onSelected(step.selected)
  }, [pending, q, pages, done, failedPages, setVisibleRows, onSelected])
  return useCallback(() => setPending({ q, failedPages }), [q, failedPages])
}

/** The columns of the result. The array keeps its identity while the columns do not change. */
function useColumns(chosen: string[] | undefined, kind: string | undefined, widePaths: readonly string[] | undefined, { pages }: SearchState): Column[] {
  const hits = pages.pages[0]?.hits ?? NO_PAGE
  const isNarrow = useIsNarrowScreen()
  // Checks all hits of the first page, and the page is rendered for each key.
  const [names, numeric] = useMemo(() => {
    const ownColumns = shownColumns(chosen, kind, hits, isNarrow)
    const visibleColumns = widePaths ? [...ownColumns, ...wideColumns(ownColumns, hits, widePaths)] : ownColumns
    return [visibleColumns, numericColumns(visibleColumns, hits)] as const
  }, [chosen?.join(), kind, widePaths?.join(), hits, isNarrow])
  return useMemo(() => findColumns(names).map((column) => (numeric.includes(column.name) ? { ...column, number: true } : column)), [names.join(), numeric.join()])
}

/** Stores the chosen columns in the preferences, for this kind or for results with several kinds; `undefined` restores the defaults. */
function saveColumns(kind: string | undefined, chosen: string[] | undefined): void {
  const { columnsOf } = currentPrefs()
  if (kind === undefined) return setPrefs({ columns: chosen?.filter((name) => !isKindSpecific(name)) })
  const { [kind]: _before, ...others } = columnsOf
  setPrefs({ columnsOf: chosen ? { ...others, [kind]: chosen } : others })
}

/** Notice that the results are those of another time. */
function PastNotice({ q }: { q: string }) {
  const t = useText()
  const time = timeOf(q)
  if (time === undefined) return null
  return (
    <p role="note" className="past">
      {t.pastNotice(time)} <Link href={searchAddress({ q: withoutTime(q) })}>{t.backToNow}</Link>
    </p>
  )
}

interface SummaryProps extends Pick<SearchState, 'done' | 'notices' | 'skipped' | 'error'> {
  q: string
  /** Number of hits that have arrived. */
  received: number
}

const Summary = memo(function Summary({ q, done, error, notices, skipped, received }: SummaryProps) {
  const t = useText()
  return (
    <div className="summary">
      <p role="status">
        {error ? (
          <span className="bad">{error}</span>
        ) : done ? (
          t.found(done.total, done.totalRelation === 'gte', done.tookMs)
        ) : (
          t.searching(received)
        )}
      </p>
      {notices.map((notice) => (
        <p key={notice.message} className="notice">
          {notice.message}
        </p>
      ))}
      {(done?.behind ?? 0) > BEHIND_THRESHOLD && <p className="notice late">{t.behind(done?.behind ?? 0)}</p>}
      <SkippedClusters skipped={skipped} />
      {done?.total === 0 && (
        <>
          <p>
            {t.noHits(q)} {t.readableOnly}
          </p>
          <QueryLinks label={t.didYouMean} queries={done.didYouMean ?? []} />
          <QueryLinks label={t.wider} queries={(done.wider ?? []).map(({ query }) => query)} />
        </>
      )}
    </div>
  )
})

/** The number of changes that are not searchable yet is shown if it is larger; a few are normal. */
const BEHIND_THRESHOLD = 1_000

function QueryLinks({ label, queries }: { label: string; queries: string[] }) {
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

/** Number of hits per group, if the query contains `group-by:`, each as a link. */
const GroupCounts = memo(function GroupCounts({ groups, q }: { groups: Groups | undefined; q: string }) {
  const t = useText()
  if (!groups || groups.values.length === 0) return null
  return (
    <section className="groups" aria-label={t.groups(groups.field)}>
      {groups.values.slice(0, MAX_GROUPS).map(({ value, count }) => (
        <Link key={value} href={searchAddress({ q: toggleTerm(q, groups.field, value) })}>
          {value || '—'} <b>{count.toLocaleString(t.locale)}</b>
        </Link>
      ))}
      {groups.values.length + groups.more > MAX_GROUPS && <span>{t.moreGroups(groups.values.length - MAX_GROUPS + groups.more)}</span>}
    </section>
  )
})

/** Maximum number of groups shown, the largest first. */
const MAX_GROUPS = 40
