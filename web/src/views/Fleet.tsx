import { Link } from 'wouter'
import { clusterAddress, searchAddress } from '../api/address'
import type { FleetStatus } from '../api/types'
import { useFleet } from '../api/useFleet'
import { ClusterName } from '../parts/ClusterName'
import { age } from '../parts/format'
import { useText } from '../text'

/** Overview of the fleet, live: counts are links to their queries. */
export function Fleet() {
  const t = useText()
  const { fleet, problem } = useFleet()
  return (
    <>
      {problem && <p role="alert">{t.interrupted(problem)}</p>}
      {fleet && (
        <>
          <section className="tiles" aria-label={t.counts}>
            {fleet.counts.map((tile) => (
              <Link key={tile.label} href={searchAddress({ q: tile.query })} className="tile">
                <strong>{tile.count.toLocaleString(t.locale)}</strong>
                {t.tiles[tile.label] ?? tile.label}
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
  const t = useText()
  return (
    <table className="clusters">
      <caption>{t.clusters}</caption>
      <thead>
        <tr>
          {t.clusterColumns.map((h) => (
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
              <Link href={clusterAddress(c.name)}>
                <ClusterName name={c.name} />
              </Link>
            </th>
            <td className={c.ready === 'True' ? 'good' : 'bad'} title={c.message}>
              {t.ready[c.ready]}
            </td>
            <td>{c.version}</td>
            <td>{c.mode}</td>
            <td>{c.provider}</td>
            <td>{c.region}</td>
            <td>{c.zones?.join(', ')}</td>
            <td>{c.nodes ? `${c.nodes.ready}/${c.nodes.total}` : ''}</td>
            <td>{c.pods.toLocaleString(t.locale)}</td>
            <td>{c.objects.toLocaleString(t.locale)}</td>
            <td>{c.ageSeconds === undefined ? t.never : t.ago(age(c.ageSeconds))}</td>
          </tr>
        ))}
      </tbody>
    </table>
  )
}
