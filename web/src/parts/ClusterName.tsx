import { CONTROL_PLANE } from '../api/client'
import { colour } from './format'

/** A cluster's name with its colour; the colour never stands alone. */
export function ClusterName({ name }: { name: string }) {
  return (
    <span className="cluster">
      <i aria-hidden="true" style={{ background: name === CONTROL_PLANE ? 'var(--muted)' : colour(name) }} />
      {name === CONTROL_PLANE ? 'control plane' : name}
    </span>
  )
}
