import type { SVGProps } from 'react'
import { CONTROL_PLANE } from '../api/client'
import { useText } from '../text'
import { stableColour, stableIndex } from './format'

/** Shapes on a grid of 10 by 10, distinguishable without colour. */
const SHAPES = [
  'M5 1a4 4 0 1 1 0 8 4 4 0 1 1 0-8z',
  'M1 1h8v8H1z',
  'M5 .6 9.6 9H.4z',
  'M5 .3 9.7 5 5 9.7.3 5z',
  'M5 .3 9.2 2.7v4.6L5 9.7.8 7.3V2.7z',
  'M3.5.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z',
  'M.4 1h9.2L5 9.4z',
  'M5 .2 6.4 3.6 10 3.9 7.3 6.3 8.1 9.8 5 7.9 1.9 9.8 2.7 6.3 0 3.9l3.6-.3z',
]
const WHEEL = 'M5 .5a4.5 4.5 0 1 1 0 9 4.5 4.5 0 1 1 0-9zm0 2.2a2.3 2.3 0 1 0 0 4.6 2.3 2.3 0 1 0 0-4.6z'

/** Colour of a cluster; the control plane has a neutral one. */
export const clusterColour = (name: string) => (name === CONTROL_PLANE ? 'var(--muted)' : stableColour(name))

/** A cluster's colour and shape, shown next to its name. */
export function ClusterMark({ name, ...attributes }: { name: string } & SVGProps<SVGSVGElement>) {
  return (
    <svg aria-hidden="true" viewBox="0 0 10 10" fill={clusterColour(name)} {...attributes}>
      <path d={name === CONTROL_PLANE ? WHEEL : SHAPES[stableIndex(name, SHAPES.length)]} />
    </svg>
  )
}

/** A cluster's name with its colour and shape. */
export function ClusterName({ name }: { name: string }) {
  const { controlPlane } = useText()
  return (
    <span className="cluster">
      <ClusterMark name={name} />
      {name === CONTROL_PLANE ? controlPlane : name}
    </span>
  )
}
