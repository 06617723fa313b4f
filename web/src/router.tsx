// Every view has an address with its whole state: query, columns, object and tab. The first paint contains the start page and
// results; other views are loaded when they are opened.
import { lazy, Suspense, useEffect } from 'react'
import { Link, useLocation } from 'wouter'
import { partOf } from './paths'
import { useText } from './text'
import { Search } from './views/Search'

const Resource = lazy(() => import('./views/Resource').then((view) => ({ default: view.Resource })))
const FleetViews = lazy(() => import('./views/fleet/FleetViews').then((view) => ({ default: view.FleetViews })))
const PropagationViews = lazy(() => import('./views/propagation/PropagationViews').then((view) => ({ default: view.PropagationViews })))
const AnalysisViews = lazy(() => import('./views/analysis/AnalysisViews').then((view) => ({ default: view.AnalysisViews })))
const Saved = lazy(() => import('./views/Saved').then((view) => ({ default: view.Saved })))

export function Views() {
  const t = useText()
  const [path] = useLocation()
  const part = partOf(path)
  return (
    <Suspense fallback={<p className="empty">{t.loading}</p>}>
      {/* One component for both, so that the box keeps its cursor when typing leads from one to the other. */}
      {part === 'home' || part === 'search' ? (
        <Search />
      ) : part === 'object' ? (
        <Resource />
      ) : part === 'saved' ? (
        <Saved />
      ) : part === 'fleet' ? (
        <FleetViews />
      ) : part === 'propagation' ? (
        <PropagationViews />
      ) : part === 'analysis' ? (
        <AnalysisViews />
      ) : (
        <NoSuchPage />
      )}
    </Suspense>
  )
}

function NoSuchPage() {
  const t = useText()
  useEffect(() => {
    document.title = `${t.noSuchPage} · Crowsnest`
  }, [t])
  return (
    <div className="page">
      <h1>{t.noSuchPage}</h1>
      <p>
        <Link href="/">{t.home}</Link> · <Link href="/fleet">{t.fleet}</Link> · <Link href="/steer">{t.propagation}</Link>
      </p>
    </div>
  )
}
