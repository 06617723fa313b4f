// Values of facets that only the query has.
import { chosen, isSame, named } from './query'
import type { FacetValue } from './types'

/** Excluded values have no counts, but can be included again; those that a counted value already stands for are left out. */
export function excluded(q: string, field: string, values: FacetValue[]): FacetValue[] {
  return named(q, field)
    .filter((written) => chosen(q, field, written) === 'excluded' && !values.some(({ value }) => isSame(field, written, value)))
    .map((value) => ({ value, count: 0 }))
}
