// Facet values that occur only in the query.
import { selectionOf, isSameValue, fieldValues } from './query'
import type { FacetValue } from './types'

/** Values that the query excludes, with count 0, so that they can be included again. Those among the counted values are omitted. */
export function excludedValues(q: string, field: string, values: FacetValue[]): FacetValue[] {
  return fieldValues(q, field)
    .filter((excluded) => selectionOf(q, field, excluded) === 'excluded' && !values.some(({ value }) => isSameValue(field, excluded, value, true)))
    .map((value) => ({ value, count: 0 }))
}
