// Paths of the search API.
import { firstPageSize } from './pages'

export const API = '/apis/search.crowsnest.io/v1alpha1'
/** Facets next to the results, in display order. */
export const FACETS = ['kind', 'status', 'cluster', 'namespace', 'region', 'provider', 'label', 'image', 'reason', 'node']

/** A query as the page requests it. */
export interface RequestedQuery {
  q: string
  /** Additional columns of hits, separated by commas. */
  columns: string
  isLive: boolean
}

const queryPath = (q: string, limit: number, columns: string, parameters: string) =>
  `${API}/query?limit=${limit}&q=${encodeURIComponent(q)}${columns && `&columns=${encodeURIComponent(columns)}`}${parameters}`

/** The path of the stream that begins with the first page of a query. */
export const resultPath = ({ q, columns, isLive }: RequestedQuery) =>
  queryPath(q, firstPageSize(window.innerHeight), columns, `&facets=${FACETS.join()}${isLive ? '&watch=true' : ''}`)

/** The path of the page at a cursor. */
export const pagePath = (q: string, columns: string, cursor: string, limit: number) => queryPath(q, limit, columns, `&facets=&cursor=${encodeURIComponent(cursor)}`)
