// Views below /fleet and /cluster: clusters, problems and events.
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

export function FleetViews() {
  const t = useTextOf(fleetText)
  const [path] = useLocation()
  const cluster = /^\/cluster\/([^/]+)$/.exec(path)?.[1]
  return (
    <SectionPage label={t.views} tabs={TABS.map(([name, href]) => [t.tabs[name], href])}>
      {cluster !== undefined ? (
        <ClusterPage name={decodeURIComponent(cluster)} key={cluster} />
      ) : path === '/fleet/nodes' ? (
        <Nodes />
      ) : path === '/fleet/events' ? (
        <Events />
      ) : path === '/fleet/join' ? (
        <Join />
      ) : (
        <Overview />
      )}
    </SectionPage>
  )
}
