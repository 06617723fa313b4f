// Breadcrumbs of a view. Has no side effects.
import { clusterAddress, readAddress, readObject, readSearch, searchAddress } from '../api/address'
import { CONTROL_PLANE, qualifiedName } from '../api/client'
import { quote } from '../api/query'
import type { Text } from '../text'

export interface Breadcrumb {
  /** Key of the page's name in the texts. */
  page?: keyof Text['pages'] | 'search' | 'fleet' | 'propagation' | 'savedSearches'
  /** Text of a breadcrumb that is not a page. */
  text?: string
  /** Format of the text if it is the name of a cluster or a query. */
  format?: 'cluster' | 'query'
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

/** Pages outside of the sections in the navigation. */
const STANDALONE = new Set(['/paths', '/who-can', '/assistants'])

/** Breadcrumbs from the section to the view itself; empty for the home page. */
export function breadcrumbsOf(path: string, search: string): Breadcrumb[] {
  const fleet: Breadcrumb = { page: 'fleet', href: '/fleet' }
  const propagation: Breadcrumb = { page: 'propagation', href: '/steer' }
  const page = PAGES[path]
  if (page) return [...(path.startsWith('/fleet') ? [fleet] : STANDALONE.has(path) ? [] : [propagation]), { page }]
  if (path === '/fleet') return [{ page: 'fleet' }]
  if (path === '/steer') return [{ page: 'propagation' }]
  if (path === '/saved') return [{ page: 'savedSearches' }]
  if (path === '/search') {
    const { q } = readSearch(search)
    return q.trim() === '' ? [{ page: 'search' }] : [{ page: 'search', href: '/search' }, { text: q, format: 'query' }]
  }
  if (path === '/object') return objectBreadcrumbs(search)
  const cluster = /^\/cluster\/([^/]+)$/.exec(path)?.[1]
  if (cluster !== undefined) return [fleet, { text: decodeURIComponent(cluster), format: 'cluster' }]
  const { kind, namespace, name } = readAddress(search)
  return name ? [propagation, { text: [kind, namespace ? `${namespace}/${name}` : name].filter(Boolean).join(' ') }] : []
}

/** Breadcrumbs of an object: its cluster, namespace and kind link to searches for the objects in them. */
function objectBreadcrumbs(search: string): Breadcrumb[] {
  const { cluster, apiVersion, resource, namespace, name } = readObject(search)
  const clusterQuery = `cluster:${quote(cluster)}`
  const namespaceQuery = namespace === undefined ? clusterQuery : `${clusterQuery} ns:${quote(namespace)}`
  return [
    { text: cluster, format: 'cluster', href: cluster === CONTROL_PLANE ? searchAddress({ q: clusterQuery }) : clusterAddress(cluster) },
    ...(namespace === undefined ? [] : [{ text: namespace, href: searchAddress({ q: namespaceQuery }) }]),
    { text: resource, href: searchAddress({ q: `kind:${quote(qualifiedName(resource, apiVersion))} ${namespaceQuery}` }) },
    { text: name },
  ]
}
