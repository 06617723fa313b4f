// Groups of clusters by a property or a label. Has no side effects.
import type { ClusterStatus } from '../../api/types'

/** Properties of clusters by which they are grouped. */
export const GROUPED_PROPERTIES = ['region', 'provider', 'zone'] as const
export type GroupedProperty = (typeof GROUPED_PROPERTIES)[number]
export type Grouping = GroupedProperty | `label:${string}`

/** The groups in the address of the fleet page. */
export interface GroupView {
  /** Absent: the clusters are not grouped. */
  by?: Grouping | undefined
  /** Values of the collapsed groups. */
  collapsed: readonly string[]
}

export function parseGrouping(text: string | null): Grouping | undefined {
  if (text !== null && /^label:./.test(text)) return text as Grouping
  return GROUPED_PROPERTIES.find((property) => property === text)
}

/** The key of a label by which clusters are grouped; undefined for a property. */
export function labelKeyOf(by: Grouping | undefined): string | undefined {
  return by?.startsWith('label:') ? by.slice('label:'.length) : undefined
}

export function readGroupView(search: string): GroupView {
  const parameters = new URLSearchParams(search)
  return { by: parseGrouping(parameters.get('group')), collapsed: parameters.getAll('collapsed') }
}

export function groupAddress({ by, collapsed }: GroupView): string {
  if (by === undefined) return '/fleet'
  return `/fleet?${new URLSearchParams([['group', by], ...collapsed.map((value) => ['collapsed', value])])}`
}

export interface ClusterGroup {
  /** Value of the property or label; empty for the clusters without one. */
  value: string
  clusters: ClusterStatus[]
  ready: number
  /** The worst state of the group's clusters. */
  worst: ClusterStatus['ready']
}

const WORST_FIRST: readonly ClusterStatus['ready'][] = ['False', 'Unknown', 'True']

/** Groups in the order of their worst state and of their value; clusters without a value are last. A cluster in several zones is in several groups. */
export function groupClusters(clusters: readonly ClusterStatus[], by: Grouping, labels: ReadonlyMap<string, string>): ClusterGroup[] {
  const clustersByValue = new Map<string, ClusterStatus[]>()
  for (const cluster of clusters) {
    for (const value of valuesOf(cluster, by, labels)) clustersByValue.set(value, [...(clustersByValue.get(value) ?? []), cluster])
  }
  const groups = [...clustersByValue].map(([value, clusters]): ClusterGroup => {
    const worst = WORST_FIRST.find((state) => clusters.some(({ ready }) => ready === state)) ?? 'Unknown'
    return { value, clusters, ready: clusters.filter(({ ready }) => ready === 'True').length, worst }
  })
  const rank = ({ value, worst }: ClusterGroup) => (value === '' ? WORST_FIRST.length : WORST_FIRST.indexOf(worst))
  return groups.sort((left, right) => rank(left) - rank(right) || left.value.localeCompare(right.value, undefined, { numeric: true }))
}

function valuesOf({ name, region, provider, zones = [] }: ClusterStatus, by: Grouping, labels: ReadonlyMap<string, string>): Iterable<string> {
  if (by === 'region') return [region ?? '']
  if (by === 'provider') return [provider ?? '']
  if (by === 'zone') return zones.length > 0 ? new Set(zones) : ['']
  return [labels.get(name) ?? '']
}
