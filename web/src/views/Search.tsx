import { Link, useNavigate } from '@tanstack/react-router'
import { useVirtualizer } from '@tanstack/react-virtual'
import { useRef, useState } from 'react'
import { has, toggle } from '../api/query'
import type { Facets, Hit } from '../api/types'
import { useSearch, type SearchState } from '../api/useSearch'
import { ClusterName } from '../parts/ClusterName'
import { age, since } from '../parts/format'
import { SearchBox } from '../parts/SearchBox'
import { searchRoute } from '../router'

/** Results as they stream in, with facets that edit the query's text. */
export function Search() {
  const { q } = searchRoute.useSearch()
  const result = useSearch(q)
  return (
    <>
      <h1 className="visually-hidden">Search</h1>
      <SearchBox value={q} live autoFocus />
      <Summary result={result} q={q} />
      <div className="results">
        <FacetRail facets={result.facets} q={q} />
        <Hits hits={result.hits} more={result.more} />
      </div>
    </>
  )
}

function Summary({ result, q }: { result: SearchState; q: string }) {
  const { done, error, notices, skipped, hits } = result
  return (
    <div className="summary">
      <p role="status">
        {error ? (
          <span className="bad">{error}</span>
        ) : done ? (
          <>
            {done.totalRelation === 'gte' ? '≥ ' : ''}
            {done.total.toLocaleString()} objects in {done.tookMs} ms
          </>
        ) : (
          `Searching… ${hits.length}`
        )}
      </p>
      {notices.map((notice) => (
        <p key={notice.message} className="notice">
          {notice.message}
        </p>
      ))}
      {skipped.length > 0 && (
        <p className="bad">
          Not complete:{' '}
          {skipped.map((s) => `${s.cluster} (${s.reason}${s.ageSeconds === undefined ? '' : `, as of ${age(s.ageSeconds)} ago`})`).join(', ')}
        </p>
      )}
      {done?.total === 0 && (
        <p>
          Nothing found for <code>{q}</code>.
          {(done.didYouMean ?? []).map((other) => (
            <span key={other}>
              {' '}
              Did you mean{' '}
              <Link to="/search" search={{ q: other }}>
                {other}
              </Link>
              ?
            </span>
          ))}
        </p>
      )}
    </div>
  )
}

/** Values of a facet shown before the reader asks for all. */
const FACET_VALUES = 8

function FacetRail({ facets, q }: { facets: Facets; q: string }) {
  return (
    <aside aria-label="Facets">
      {Object.entries(facets)
        .filter(([, values]) => values.length > 0)
        .map(([field, values]) => (
          <Facet key={field} field={field} values={values} q={q} />
        ))}
    </aside>
  )
}

function Facet({ field, values, q }: { field: string; values: Facets[string]; q: string }) {
  const navigate = useNavigate()
  const [all, setAll] = useState(false)
  const shown = values.filter(({ value }, at) => all || at < FACET_VALUES || has(q, field, value))
  return (
    <fieldset>
      <legend>{field}</legend>
      {shown.map(({ value, count }) => (
        <button
          key={value}
          type="button"
          aria-pressed={has(q, field, value)}
          title={`${field}:${value} (Alt-click leaves it out)`}
          onClick={(event) => void navigate({ to: '/search', search: { q: toggle(q, field, value, event.altKey) } })}
        >
          <span>{value}</span> <b>{count.toLocaleString()}</b>
        </button>
      ))}
      {values.length > FACET_VALUES && (
        <button type="button" className="more" aria-expanded={all} onClick={() => setAll(!all)}>
          {all ? 'Fewer' : `${values.length - shown.length} more`}
        </button>
      )}
    </fieldset>
  )
}

const COLUMNS = ['Cluster', 'Kind', 'Namespace', 'Name', 'Status', 'Ready', 'Restarts', 'Age', 'Matched']

function Hits({ hits, more }: { hits: Hit[]; more: (() => void) | undefined }) {
  const scroller = useRef<HTMLDivElement>(null)
  const rows = useVirtualizer({ count: hits.length, getScrollElement: () => scroller.current, estimateSize: () => 30, overscan: 20 })
  return (
    <div
      className="hits"
      ref={scroller}
      tabIndex={0}
      role="table"
      aria-label="Results"
      aria-rowcount={hits.length}
      onScroll={(event) => {
        const { scrollTop, scrollHeight, clientHeight } = event.currentTarget
        if (scrollHeight - scrollTop - clientHeight < 600) more?.()
      }}
    >
      <div role="row" className="row head">
        {COLUMNS.map((c) => (
          <span key={c} role="columnheader">
            {c}
          </span>
        ))}
      </div>
      <div style={{ height: rows.getTotalSize(), position: 'relative' }} role="rowgroup">
        {rows.getVirtualItems().map((row) => {
          const hit = hits[row.index]
          return hit ? <HitRow key={row.key} hit={hit} top={row.start} /> : null
        })}
      </div>
    </div>
  )
}

function HitRow({ hit, top }: { hit: Hit; top: number }) {
  const { cluster, apiVersion, resource, namespace, name } = hit
  return (
    <div role="row" className={hit.deleted ? 'row deleted' : 'row'} style={{ transform: `translateY(${top}px)` }}>
      <span role="cell">
        <ClusterName name={cluster} />
      </span>
      <span role="cell">{hit.kind}</span>
      <span role="cell">{namespace}</span>
      <span role="cell" title={name}>
        <Link to="/object" search={{ cluster, apiVersion, resource, namespace, name, tab: 'yaml' }}>
          {name}
        </Link>
      </span>
      <span role="cell" title={hit.message ?? hit.status}>
        {hit.status}
      </span>
      <span role="cell">{hit.ready}</span>
      <span role="cell">{hit.restarts}</span>
      <span role="cell">{since(hit.created)}</span>
      <span role="cell" className="why">
        {hit.matched.map((m) => (m.text ? `${m.field}: ${m.text}` : m.field)).join(' · ')}
      </span>
    </div>
  )
}
