// Propagation views: policies, explanations, previews, failover, quotas.
import { lazy, Suspense } from 'react'
import { useLocation } from 'wouter'
import { SectionPage } from '../../parts/SectionPage'
import { useTextOf } from '../../text'
import { queryText } from '../../text/query'
import { propagationText } from '../../text/propagation'
import { Bindings } from './Bindings'
import { Failover } from './Failover'
import { Policies } from './Policies'
import { PolicyPage } from './PolicyPage'
import { Quotas } from './Quotas'
import { Rebalance } from './Rebalance'
import { TemplatePage } from './TemplatePage'
import './propagation.css'

// The editor is the largest part of the UI, so it is loaded on demand.
const Plan = lazy(() => import('./Plan').then((view) => ({ default: view.Plan })))

const TABS = [
  ['policies', '/steer'],
  ['bindings', '/steer/bindings'],
  ['failover', '/steer/failover'],
  ['quotas', '/steer/quotas'],
  ['rebalance', '/steer/rebalance'],
  ['plan', '/plan'],
] as const

export function PropagationViews() {
  const t = useTextOf(propagationText)
  const queryTexts = useTextOf(queryText)
  const [path] = useLocation()
  return (
    <SectionPage label={t.views} tabs={TABS.map(([name, href]) => [t.tabs[name], href])}>
      <Suspense fallback={<p className="empty">{queryTexts.loading}</p>}>{viewOf(path)}</Suspense>
    </SectionPage>
  )
}

function viewOf(path: string) {
  switch (path) {
    case '/steer/bindings':
      return <Bindings />
    case '/steer/failover':
      return <Failover />
    case '/steer/quotas':
      return <Quotas />
    case '/steer/rebalance':
      return <Rebalance />
    case '/policy':
      return <PolicyPage />
    case '/plan':
      return <Plan />
    case '/why':
      return <TemplatePage page="why" />
    case '/topology':
      return <TemplatePage page="topology" />
    case '/drift':
      return <TemplatePage page="drift" />
    default:
      return <Policies />
  }
}
