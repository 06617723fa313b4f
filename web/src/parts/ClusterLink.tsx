import { Link } from 'wouter'
import { clusterAddress } from '../api/address'
import { ClusterName } from './ClusterName'

/** A cluster's name with a link to the page of the cluster. */
export function ClusterLink({ name }: { name: string }) {
  return (
    <Link href={clusterAddress(name)}>
      <ClusterName name={name} />
    </Link>
  )
}
