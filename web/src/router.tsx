// Every view has an address with its whole state: query, columns, object and tab. The first paint contains the start page and
// results; other views are loaded when they are opened.
import { lazy, Suspense } from 'react'
import { useLocation } from 'wouter'
import { useText } from './text'
import { Search } from './views/Search'

const Resource = lazy(() => import('./views/Resource').then((view) => ({ default: view.Resource })))
const FleetViews = lazy(() => import('./views/fleet/FleetViews').then((view) => ({ default: view.FleetViews })))
const SteerViews = lazy(() => import('./views/steer/SteerViews').then((view) => ({ default: view.SteerViews })))
const Saved = lazy(() => import('./views/Saved').then((view) => ({ default: view.Saved })))

/** The section of the UI that an address belongs to. */
export function partOf(path: string): 'search' | 'fleet' | 'steering' | 'saved' | undefined {
  if (path === '/' || path === '/search') return 'search'
  if (path === '/saved') return 'saved'
  if (/^\/(fleet(\/|$)|cluster\/)/.test(path)) return 'fleet'
  return /^\/(steer(\/|$)|(policy|why|topology|drift|plan)$)/.test(path) ? 'steering' : undefined
}

export function Views() {
  const t = useText()
  const [path] = useLocation()
  const part = partOf(path)
  return (
    <Suspense fallback={<p className="empty">{t.loading}</p>}>
      {/* One component for both, so that the box keeps its cursor when typing leads from one to the other. */}
      {part === 'search' ? (
        <Search />
      ) : path === '/object' ? (
        <Resource />
      ) : part === 'saved' ? (
        <Saved />
      ) : part === 'fleet' ? (
        <FleetViews />
      ) : part === 'steering' ? (
        <SteerViews />
      ) : (
        <p className="empty">{t.noSuchPage}</p>
      )}
    </Suspense>
  )
}
