// Routes of the UI. An address contains the whole state of its view. The start page and the results are part of the first load; other
// views are loaded when they are opened.
import { lazy, Suspense, useEffect } from 'react'
import { Link, useLocation } from 'wouter'
import { sectionOf } from './sections'
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
  const section = sectionOf(path)
  return (
    <Suspense fallback={<p className="empty">{t.loading}</p>}>
      {/* One component for both, so that the search box keeps its cursor when typing on the start page opens the results. */}
      {section === 'home' || section === 'search' ? (
        <Search />
      ) : section === 'object' ? (
        <Resource />
      ) : section === 'saved' ? (
        <Saved />
      ) : section === 'fleet' ? (
        <FleetViews />
      ) : section === 'propagation' ? (
        <PropagationViews />
      ) : section === 'analysis' ? (
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
