// Every view is an address: the query, its columns, the object and its tab live there alone. The first paint has the start and the
// results; every other view is loaded when it is opened.
import { lazy, Suspense } from 'react'
import { useLocation } from 'wouter'
import { useText } from './text'
import { Search } from './views/Search'

const Resource = lazy(() => import('./views/Resource').then((view) => ({ default: view.Resource })))
const Saved = lazy(() => import('./views/Saved').then((view) => ({ default: view.Saved })))

export function Views() {
  const t = useText()
  const [path] = useLocation()
  return (
    <Suspense fallback={<p className="empty">{t.loading}</p>}>
      {/* One component for both, so that the box keeps its cursor when typing leads from the one to the other. */}
      {path === '/' || path === '/search' ? (
        <Search />
      ) : path === '/object' ? (
        <Resource />
      ) : path === '/saved' ? (
        <Saved />
      ) : (
        <p className="empty">{t.noSuchPage}</p>
      )}
    </Suspense>
  )
}
