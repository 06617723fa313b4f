import { Link } from '@tanstack/react-router'
import { useEffect, useState } from 'react'
import { streamEvents } from '../api/sse'
import type { FleetStatus } from '../api/types'
import { ClusterName } from '../parts/ClusterName'
import { age } from '../parts/format'
import { SearchBox } from '../parts/SearchBox'

const STARTERS = [
  ['Unhealthy pods', 'kind:pod -status:Running,Completed,Succeeded'],
  ['Restarting pods', 'kind:pod restarts:>3'],
  ['Warning events', 'kind:event type:Warning'],
  ['Changed in the last hour', 'kind:workload changed:<1h'],
  ['Nodes not ready', 'kind:node -status:Ready'],
] as const

/** The fleet at a glance, live: counts are links to the queries behind them. */
export function Overview() {
  const { fleet, problem } = useFleet()
  return (
    <>
      <h1 className="visually-hidden">Fleet</h1>
      <SearchBox value="" autoFocus />
      <ul className="starters" aria-label="Queries to start from">
        {STARTERS.map(([label, q]) => (
          <li key={label}>
            <Link to="/search" search={{ q }}>
              {label}
            </Link>
          </li>
        ))}
      </ul>
      {problem && <p role="alert">{problem}</p>}
      {fleet && (
        <>
          <section className="tiles" aria-label="Counts">
            {fleet.counts.map((tile) => (
              <Link key={tile.label} to="/search" search={{ q: tile.query }} className="tile">
                <strong>{tile.count.toLocaleString()}</strong>
                {tile.label}
              </Link>
            ))}
          </section>
          <ClusterTable fleet={fleet} />
        </>
      )}
    </>
  )
}

function ClusterTable({ fleet }: { fleet: FleetStatus }) {
  return (
    <table className="clusters">
      <caption>Clusters</caption>
      <thead>
        <tr>
          {['Name', 'Ready', 'Version', 'Mode', 'Provider', 'Region', 'Zones', 'Nodes', 'Pods', 'Objects', 'Heard from'].map((h) => (
            <th key={h} scope="col">
              {h}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {fleet.clusters.map((c) => (
          <tr key={c.name} data-cluster={c.name}>
            <th scope="row">
              <Link to="/search" search={{ q: `cluster:${c.name}` }}>
                <ClusterName name={c.name} />
              </Link>
            </th>
            <td className={c.ready === 'True' ? 'good' : 'bad'} title={c.message}>
              {c.ready === 'True' ? '✓ Ready' : c.ready === 'False' ? '✗ Not ready' : '? Unknown'}
            </td>
            <td>{c.version}</td>
            <td>{c.mode}</td>
            <td>{c.provider}</td>
            <td>{c.region}</td>
            <td>{c.zones?.join(', ')}</td>
            <td>{c.nodes ? `${c.nodes.ready}/${c.nodes.total}` : ''}</td>
            <td>{c.pods.toLocaleString()}</td>
            <td>{c.objects.toLocaleString()}</td>
            <td>{c.ageSeconds === undefined ? 'never' : `${age(c.ageSeconds)} ago`}</td>
          </tr>
        ))}
      </tbody>
    </table>
  )
}

/** Follows the fleet's status; reconnects with a growing pause and says so. */
function useFleet() {
  const [fleet, setFleet] = useState<FleetStatus>()
  const [problem, setProblem] = useState<string>()
  useEffect(() => {
    const abort = new AbortController()
    let timer: ReturnType<typeof setTimeout> | undefined
    let pause = 500
    const follow = () => {
      streamEvents('/apis/search.crowsnest.io/v1alpha1/status?watch=true', abort.signal, (event) => {
        if (event.event !== 'status') return
        setFleet(JSON.parse(event.data) as FleetStatus)
        setProblem(undefined)
        pause = 500
      })
        .catch((error: unknown) => {
          if (!abort.signal.aborted) setProblem(`Live status is interrupted: ${error instanceof Error ? error.message : String(error)}`)
        })
        .finally(() => {
          if (abort.signal.aborted) return
          timer = setTimeout(follow, pause)
          pause = Math.min(pause * 2, 10_000)
        })
    }
    follow()
    return () => {
      abort.abort()
      clearTimeout(timer)
    }
  }, [])
  return { fleet, problem }
}
