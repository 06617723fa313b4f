// The place of a view in the UI. Pure.
import { clusterAddress, readAddress, readObject, readSearch, searchAddress } from '../api/address'
import { CONTROL_PLANE } from '../api/client'
import { quote } from '../api/query'
import type { Text } from '../text'

export interface Crumb {
  /** A page of the catalogue. */
  page?: keyof Text['pages'] | 'search' | 'fleet' | 'steering' | 'savedSearches'
  /** Any other text. */
  text?: string
  /** The text is a cluster's name, or a query. */
  is?: 'cluster' | 'query'
  /** Absent for the current view. */
  href?: string
}

const PAGES: Record<string, keyof Text['pages']> = {
  '/fleet/nodes': 'nodes',
  '/fleet/events': 'events',
  '/fleet/join': 'join',
  '/steer/bindings': 'bindings',
  '/steer/failover': 'failover',
  '/steer/quotas': 'quotas',
  '/steer/rebalance': 'rebalance',
  '/plan': 'plan',
  '/paths': 'paths',
  '/who-can': 'whoCan',
  '/assistants': 'assistants',
}

/** Pages that belong to no section of the navigation. */
const STANDALONE = new Set(['/paths', '/who-can', '/assistants'])

/** From the section to the view itself; the home page has none. */
export function crumbsOf(path: string, search: string): Crumb[] {
  const fleet: Crumb = { page: 'fleet', href: '/fleet' }
  const steering: Crumb = { page: 'steering', href: '/steer' }
  const page = PAGES[path]
  if (page) return [...(path.startsWith('/fleet') ? [fleet] : STANDALONE.has(path) ? [] : [steering]), { page }]
  if (path === '/fleet') return [{ page: 'fleet' }]
  if (path === '/steer') return [{ page: 'steering' }]
  if (path === '/saved') return [{ page: 'savedSearches' }]
  if (path === '/search') {
    const { q } = readSearch(search)
    return q.trim() === '' ? [{ page: 'search' }] : [{ page: 'search', href: '/search' }, { text: q, is: 'query' }]
  }
  if (path === '/object') return ofObject(search)
  const cluster = /^\/cluster\/([^/]+)$/.exec(path)?.[1]
  if (cluster !== undefined) return [fleet, { text: decodeURIComponent(cluster), is: 'cluster' }]
  const { kind, namespace, name } = readAddress(search)
  return name ? [steering, { text: [kind, namespace ? `${namespace}/${name}` : name].filter(Boolean).join(' ') }] : []
}

/** Each part of an object's identity leads to the objects that share it. */
function ofObject(search: string): Crumb[] {
  const { cluster, resource, namespace, name } = readObject(search)
  const within = `cluster:${quote(cluster)}`
  const inNamespace = namespace === undefined ? within : `${within} ns:${quote(namespace)}`
  return [
    { text: cluster, is: 'cluster', href: cluster === CONTROL_PLANE ? searchAddress({ q: within }) : clusterAddress(cluster) },
    ...(namespace === undefined ? [] : [{ text: namespace, href: searchAddress({ q: inNamespace }) }]),
    { text: resource, href: searchAddress({ q: `kind:${quote(resource)} ${inNamespace}` }) },
    { text: name },
  ]
}
