// Everything below /fleet and /cluster: what the clusters are, what is wrong with them, what happens in them.
import { Link, useLocation } from 'wouter'
import { Asking } from '../../parts/Asking'
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
    <Asking>
      <div className="page">
        <nav className="subnav" aria-label={t.views}>
          {TABS.map(([name, href]) => (
            <Link key={name} href={href} aria-current={path === href ? 'page' : undefined}>
              {t.tabs[name]}
            </Link>
          ))}
        </nav>
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
      </div>
    </Asking>
  )
}
