// Propagation views: policies, explanations, previews, failover, quotas.
import { Suspense, type ReactNode } from 'react'
import { useLocation } from 'wouter'
import { lazyPart } from '../../parts/LazyPart'
import { Loading } from '../../parts/Loading'
import { SectionPage } from '../../parts/SectionPage'
import { useTextOf } from '../../text'
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
const Plan = lazyPart(() => import('./Plan'), (view) => view.Plan, { isView: true })

const TABS = [
  ['policies', '/steer'],
  ['bindings', '/steer/bindings'],
  ['failover', '/steer/failover'],
  ['quotas', '/steer/quotas'],
  ['rebalance', '/steer/rebalance'],
  ['plan', '/plan'],
] as const

/** Views other than the policies, by path. */
const VIEWS: Record<string, ReactNode> = {
  '/steer/bindings': <Bindings />,
  '/steer/failover': <Failover />,
  '/steer/quotas': <Quotas />,
  '/steer/rebalance': <Rebalance />,
  '/policy': <PolicyPage />,
  '/plan': <Plan />,
  '/why': <TemplatePage page="why" />,
  '/topology': <TemplatePage page="topology" />,
  '/drift': <TemplatePage page="drift" />,
}

export function PropagationViews() {
  const t = useTextOf(propagationText)
  const [path] = useLocation()
  return (
    <SectionPage label={t.views} tabs={TABS.map(([name, href]) => [t.tabs[name], href])}>
      <Suspense fallback={<Loading />}>{VIEWS[path] ?? <Policies />}</Suspense>
    </SectionPage>
  )
}
