// Routes of the UI. An address contains the complete state of its view. The start page and the results are part of the first load; other
// views are loaded when they are opened.
import { Suspense, useEffect, type ComponentType } from 'react'
import { Link, useLocation } from 'wouter'
import { ErrorBoundary, useOnAddressChange } from './parts/ErrorBoundary'
import { lazyPart } from './parts/LazyPart'
import { Loading } from './parts/Loading'
import { sectionOf, type Section } from './sections'
import { useText } from './text'
import { loadHome, Search } from './views/Search'

const loadResource = () => import('./views/Resource')
const loadFleet = () => import('./views/fleet/FleetViews')
const loadPropagation = () => import('./views/propagation/PropagationViews')
const loadAnalysis = () => import('./views/analysis/AnalysisViews')
const loadSaved = () => import('./views/Saved')

const VIEW = { isView: true }
const Resource = lazyPart(loadResource, (view) => view.Resource, VIEW)
const FleetViews = lazyPart(loadFleet, (view) => view.FleetViews, VIEW)
const PropagationViews = lazyPart(loadPropagation, (view) => view.PropagationViews, VIEW)
const AnalysisViews = lazyPart(loadAnalysis, (view) => view.AnalysisViews, VIEW)
const Saved = lazyPart(loadSaved, (view) => view.Saved, VIEW)

const LOADERS: Partial<Record<Section, () => Promise<unknown>>> = {
  home: loadHome,
  object: loadResource,
  fleet: loadFleet,
  propagation: loadPropagation,
  analysis: loadAnalysis,
  saved: loadSaved,
}

const VIEWS: Record<Section, ComponentType> = {
  // One component for both, so that the search box keeps its cursor when typing on the start page opens the results.
  home: Search,
  search: Search,
  object: Resource,
  fleet: FleetViews,
  propagation: PropagationViews,
  analysis: AnalysisViews,
  saved: Saved,
}

/** Starts to load the view of a path, in parallel with the request for the session. A failure is ignored here: the view loads its code itself. */
export function preloadView(path: string): void {
  const section = sectionOf(path)
  void (section && LOADERS[section]?.())?.catch(() => undefined)
}

export function Views() {
  const [path] = useLocation()
  const section = sectionOf(path)
  const View = section ? VIEWS[section] : NoSuchPage
  return (
    <ErrorBoundary catches={() => true} fallback={({ error }, retry) => <ViewFailure error={error} onRetry={retry} />}>
      {() => (
        <Suspense fallback={<Loading />}>
          <View />
        </Suspense>
      )}
    </ErrorBoundary>
  )
}

/** Message in the place of a view that has failed. The navigation stays, and another address shows its view. */
function ViewFailure({ error, onRetry }: { error: Error; onRetry: () => void }) {
  const t = useText()
  useOnAddressChange(onRetry)
  return (
    <div className="page">
      <p role="alert">
        {t.viewFailed(error.message)}{' '}
        <button type="button" onClick={onRetry}>
          {t.retry}
        </button>
      </p>
    </div>
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
