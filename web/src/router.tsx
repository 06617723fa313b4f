// Every view is a URL: the query, the object and its tab live in the address alone.
import { createRootRoute, createRoute, createRouter } from '@tanstack/react-router'
import { readAddress, writeAddress } from './api/address'
import { Shell } from './views/Shell'
import { Overview } from './views/Overview'
import { Resource } from './views/Resource'
import { Search } from './views/Search'

const root = createRootRoute({ component: Shell, notFoundComponent: () => <p className="empty">There is no such page.</p> })

const overview = createRoute({ getParentRoute: () => root, path: '/', component: Overview })

const text = (value: unknown): string => (typeof value === 'string' ? value : '')

export const searchRoute = createRoute({
  getParentRoute: () => root,
  path: '/search',
  validateSearch: (search: Record<string, unknown>) => ({ q: text(search.q) }),
  component: Search,
})

export type Tab = 'yaml' | 'events' | 'logs'

export const resourceRoute = createRoute({
  getParentRoute: () => root,
  path: '/object',
  validateSearch: (search: Record<string, unknown>) => {
    const tab = text(search.tab)
    return {
      cluster: text(search.cluster),
      apiVersion: text(search.apiVersion),
      resource: text(search.resource),
      namespace: text(search.namespace) || undefined,
      name: text(search.name),
      tab: (tab === 'events' || tab === 'logs' ? tab : 'yaml') as Tab,
    }
  },
  component: Resource,
})

export const router = createRouter({
  routeTree: root.addChildren([overview, searchRoute, resourceRoute]),
  parseSearch: readAddress,
  stringifySearch: writeAddress,
})

declare module '@tanstack/react-router' {
  interface Register {
    router: typeof router
  }
}
