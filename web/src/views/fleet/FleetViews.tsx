// Views below /fleet and /cluster: clusters, problems and events.
import type { ComponentType } from 'react'
import { useLocation } from 'wouter'
import { SectionPage } from '../../parts/SectionPage'
import { useTextOf } from '../../text'
import { fleetText } from '../../text/fleet'
import { ClusterPage } from './ClusterPage'
import { Events } from './Events'
import { Join } from './Join'
import { Nodes } from './Nodes'
import { Overview } from './Overview'
import './fleet.css'

const TABS = [
  ['clusters', '/fleet'],
  ['nodes', '/fleet/nodes'],
  ['events', '/fleet/events'],
  ['join', '/fleet/join'],
] as const

/** Views other than the overview, by path. */
const VIEWS: Record<string, ComponentType> = { '/fleet/nodes': Nodes, '/fleet/events': Events, '/fleet/join': Join }

export function FleetViews() {
  const t = useTextOf(fleetText)
  const [path] = useLocation()
  const cluster = /^\/cluster\/([^/]+)$/.exec(path)?.[1]
  const View = VIEWS[path] ?? Overview
  return (
    <SectionPage label={t.views} tabs={TABS.map(([name, href]) => [t.tabs[name], href])}>
      {cluster === undefined ? <View /> : <ClusterPage name={decodeURIComponent(cluster)} key={cluster} />}
    </SectionPage>
  )
}
