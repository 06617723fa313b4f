// Fields that differ in any of several clusters. Has no side effects.
import type { FieldDifference } from '../../api/drift'

export interface DriftRow {
  path: string
  /** One for each cluster, in their order; undefined: the field is in sync there, or the object is unknown. */
  differences: (FieldDifference | undefined)[]
}

/** Rows by field, sorted by path. `changed` has the differing fields of each cluster; undefined: not known. */
export function driftRows(changed: readonly (readonly FieldDifference[] | undefined)[]): DriftRow[] {
  const paths = [...new Set(changed.flatMap((fields) => fields?.map(({ path }) => path) ?? []))].sort()
  return paths.map((path) => ({ path, differences: changed.map((fields) => fields?.find((field) => field.path === path)) }))
}
