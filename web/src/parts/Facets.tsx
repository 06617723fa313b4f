import { useState } from 'react'
import { excluded } from '../api/facets'
import { chosen, toggle } from '../api/query'
import type { Facets, FacetValue } from '../api/types'
import { FACETS } from '../api/useSearch'
import { useText } from '../text'
import { ClusterName } from './ClusterName'

/** Values of a facet shown before the user expands it. */
const SHOWN = 6

/** Fields whose values differ at their end, which is kept if they are truncated. */
const ENDS = new Set(['label', 'image'])

interface FacetsProps {
  facets: Facets
  q: string
  onAsk: (query: string) => void
}

/** Facets of the result. The query's text is the only state: a click edits it. */
export function FacetRail({ facets, q, onAsk }: FacetsProps) {
  const t = useText()
  return (
    <aside aria-label={t.facets}>
      {FACETS.map((field) => ({ field, values: facets[field] ?? [] }))
        .map(({ field, values }) => ({ field, values: [...values, ...excluded(q, field, values)] }))
        .filter(({ values }) => values.length > 0)
        .map(({ field, values }) => (
          <Facet key={field} field={field} values={values} q={q} onAsk={onAsk} />
        ))}
    </aside>
  )
}

function Facet({ field, values, q, onAsk }: { field: string; values: FacetValue[]; q: string; onAsk: (query: string) => void }) {
  const t = useText()
  const [all, setAll] = useState(false)
  const shown = values.filter(({ value }, at) => all || at < SHOWN || chosen(q, field, value) !== undefined)
  return (
    <fieldset>
      <legend>{field}</legend>
      {shown.map(({ value, count }) => {
        const term = `${field}:${value}`
        const state = chosen(q, field, value)
        const edit = (exclude: boolean) => onAsk(toggle(q, field, value, exclude))
        const label = field === 'cluster' ? <ClusterName name={value} /> : <bdi>{value}</bdi>
        if (state === 'excluded')
          return (
            <div key={value} className="value">
              <button type="button" className="excluded" aria-pressed="true" title={t.takeBack(term)} aria-label={t.takeBack(term)} onClick={() => edit(true)}>
                <s>{label}</s>
              </button>
            </div>
          )
        return (
          <div key={value} className="value">
            <button type="button" aria-pressed={state === 'asked'} title={t.facetHint(term)} onClick={(event) => edit(event.altKey)}>
              <span className={ENDS.has(field) ? 'end' : undefined}>{label}</span> <b>{count.toLocaleString(t.locale)}</b>
            </button>
            <button type="button" className="out" title={t.leaveOut(term)} aria-label={t.leaveOut(term)} onClick={() => edit(true)}>
              −
            </button>
          </div>
        )
      })}
      {values.length > SHOWN && (
        <button type="button" className="more" aria-expanded={all} onClick={() => setAll(!all)}>
          {all ? t.fewer : t.more(values.length - shown.length)}
        </button>
      )}
    </fieldset>
  )
}
