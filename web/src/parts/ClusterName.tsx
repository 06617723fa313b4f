import { CONTROL_PLANE } from '../api/client'
import { hue } from './format'

/** A cluster's name with its colour; the colour never stands alone. */
export function ClusterName({ name }: { name: string }) {
  const colour = name === CONTROL_PLANE ? 'var(--muted)' : `oklch(0.62 0.15 ${hue(name)})`
  return (
    <span className="cluster">
      <i aria-hidden="true" style={{ background: colour }} />
      {name === CONTROL_PLANE ? 'control plane' : name}
    </span>
  )
}
