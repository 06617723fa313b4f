import { Link } from 'wouter'
import { clusterAddress } from '../api/address'
import { CONTROL_PLANE } from '../api/client'
import { ClusterName } from './ClusterName'

/** A cluster's name with a link to the page of the cluster. The control plane has none. */
export function ClusterLink({ name }: { name: string }) {
  if (name === CONTROL_PLANE) return <ClusterName name={name} />
  return (
    <Link href={clusterAddress(name)}>
      <ClusterName name={name} />
    </Link>
  )
}
