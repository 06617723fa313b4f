import { memo, useState } from 'react'
import { excludedValues } from '../api/facets'
import { selectionOf, toggleTerm } from '../api/query'
import type { Facets, FacetValue } from '../api/types'
import { FACETS } from '../api/searchApi'
import { useText } from '../text'
import { ClusterName } from './ClusterName'

/** Number of values shown before the user expands a facet. */
const COLLAPSED_VALUES = 6

/** Fields whose values differ at their end, so they are truncated at the start. */
const TRUNCATED_AT_START = new Set(['label', 'image'])

interface FacetsProps {
  facets: Facets
  /** The query of the facets. */
  q: string
  /** Edits the query of the page, which may be a newer one. */
  onEdit: (edit: (query: string) => string) => void
}

/** Facets of a result. A click edits the query. */
export const FacetRail = memo(function FacetRail({ facets, q, onEdit }: FacetsProps) {
  const t = useText()
  return (
    <aside aria-label={t.facets}>
      {FACETS.map((field) => ({ field, values: facets[field] ?? [] }))
        .map(({ field, values }) => ({ field, values: [...values, ...excludedValues(q, field, values)] }))
        .filter(({ values }) => values.length > 0)
        .map(({ field, values }) => (
          <Facet key={field} field={field} values={values} q={q} onEdit={onEdit} />
        ))}
    </aside>
  )
})

function Facet({ field, values, q, onEdit }: { field: string; values: FacetValue[] } & Pick<FacetsProps, 'q' | 'onEdit'>) {
  const t = useText()
  const [isExpanded, setIsExpanded] = useState(false)
  const shownValues = values.filter(({ value }, at) => isExpanded || at < COLLAPSED_VALUES || selectionOf(q, field, value) !== undefined)
  return (
    <fieldset>
      <legend>{field}</legend>
      {shownValues.map(({ value, count }) => {
        const term = `${field}:${value}`
        const state = selectionOf(q, field, value)
        const edit = (exclude: boolean) => onEdit((query) => toggleTerm(query, field, value, exclude))
        const label = field === 'cluster' ? <ClusterName name={value} /> : <bdi>{value}</bdi>
        if (state === 'excluded')
          return (
            <div key={value} className="value">
              <button type="button" className="excluded" aria-pressed="true" title={t.includeAgain(term)} aria-label={t.includeAgain(term)} onClick={() => edit(true)}>
                <s>{label}</s>
              </button>
            </div>
          )
        return (
          <div key={value} className="value">
            <button type="button" aria-pressed={state === 'included'} title={t.facetHint(term)} onClick={(event) => edit(event.altKey)}>
              <span className={TRUNCATED_AT_START.has(field) ? 'end' : undefined}>{label}</span> <b>{count.toLocaleString(t.locale)}</b>
            </button>
            <button type="button" className="out" title={t.exclude(term)} aria-label={t.exclude(term)} onClick={() => edit(true)}>
              −
            </button>
          </div>
        )
      })}
      {values.length > COLLAPSED_VALUES && (
        <button type="button" className="more" aria-expanded={isExpanded} onClick={() => setIsExpanded(!isExpanded)}>
          {isExpanded ? t.fewer : t.more(values.length - shownValues.length)}
        </button>
      )}
    </fieldset>
  )
}
