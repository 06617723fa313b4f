import { expect, it } from 'vitest'
import { GENERIC, iconOfKind, KIND_ICONS, OTHER_ICONS } from './kinds'
import sprite from './sprite.svg?raw'

const drawn = new Set([...sprite.matchAll(/<symbol id="(\w+)"/g)].map(([, id]) => id))

it('every icon is in the sprite', () => {
  expect([...KIND_ICONS, ...OTHER_ICONS].filter((icon) => !drawn.has(icon))).toEqual([])
  expect(drawn.size).toBe(KIND_ICONS.length + OTHER_ICONS.length)
})

it.each([
  ['v1', 'Pod', 'pod'],
  ['apps/v1', 'Deployment', 'deployment'],
  ['networking.k8s.io/v1', 'Ingress', 'ingress'],
  ['policy.karmada.io/v1alpha1', 'ClusterPropagationPolicy', 'policy'],
  ['cert-manager.io/v1', 'Certificate', GENERIC],
  ['example.io/v1', 'Deployment', GENERIC],
  ['cluster.x-k8s.io/v1beta1', 'Cluster', GENERIC],
])('%s %s has the icon %s', (apiVersion, kind, icon) => expect(iconOfKind(kind, apiVersion)).toBe(icon))
