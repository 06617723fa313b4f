// Three-way merge of an object: the base of an edit, the edited, and the current version. Pure.
import { printJson } from '../../api/json'

/** Path of a value: field names, names of list elements, or else indices. */
export type Path = readonly string[]

export interface Change {
  path: Path
  /** Absent: did not exist. */
  before?: unknown
  /** Absent: removed. */
  after?: unknown
}

type Fields = Record<string, unknown>

const isFields = (value: unknown): value is Fields => typeof value === 'object' && value !== null && !Array.isArray(value)
export const same = (one: unknown, other: unknown): boolean => printJson(one) === printJson(other)

/** Elements by name, as Kubernetes merges containers, ports and volumes; only if all have distinct names. */
function named(value: unknown): Map<string, unknown> | undefined {
  if (!Array.isArray(value)) return undefined
  const elements = new Map(value.map((element: unknown) => [isFields(element) && typeof element.name === 'string' ? `[${element.name}]` : '', element]))
  return elements.size === value.length && !elements.has('') ? elements : undefined
}

export function changes(before: unknown, after: unknown, path: Path = []): Change[] {
  if (same(before, after)) return []
  if (isFields(before) && isFields(after)) {
    const fields = new Set([...Object.keys(before), ...Object.keys(after)])
    return [...fields].flatMap((field) => within(before, after, field, path))
  }
  const one = named(before)
  const other = named(after)
  if (one && other) {
    const elements = new Set([...one.keys(), ...other.keys()])
    return [...elements].flatMap((element) => within(Object.fromEntries(one), Object.fromEntries(other), element, path))
  }
  return [{ path, before, after }]
}

function within(before: Fields, after: Fields, field: string, path: Path): Change[] {
  const inside = [...path, field]
  if (field in before && field in after) return changes(before[field], after[field], inside)
  return field in before ? [{ path: inside, before: before[field] }] : [{ path: inside, after: after[field] }]
}

const leadsTo = (one: Path, other: Path) => one.every((field, nth) => other[nth] === field)

/** Fields maintained by the server, which edits do not affect. */
export const isOwn = ({ path }: Change) =>
  path[0] === 'status' || (path[0] === 'metadata' && ['resourceVersion', 'managedFields', 'generation'].includes(path[1] ?? ''))

export interface Conflict {
  mine: Change
  theirs: Change
}

export interface Merged {
  /** Changes on the server, except for fields that it maintains. */
  theirs: Change[]
  mine: Change[]
  /** Changed on both sides, to different values. */
  conflicts: Conflict[]
}

export function compare(base: unknown, mine: unknown, theirs: unknown): Merged {
  const there = changes(base, theirs)
  const here = changes(base, mine).filter((change) => !isOwn(change))
  const both = here.flatMap((own) => there.filter((other) => (leadsTo(own.path, other.path) || leadsTo(other.path, own.path)) && !same(own, other)).map((other) => ({ mine: own, theirs: other })))
  return { theirs: there.filter((change) => !isOwn(change)), mine: here, conflicts: both }
}

/** Applies changes to the current version. */
export function apply(onto: unknown, wanted: Change[]): unknown {
  return wanted.reduce((value, change) => put(value, change.path, change), onto)
}

function put(value: unknown, path: Path, change: Change): unknown {
  const [field, ...rest] = path
  if (field === undefined) return change.after
  const element = /^\[(.*)\]$/s.exec(field)
  if (element && Array.isArray(value)) {
    const name = element[1]
    const is = (one: unknown) => isFields(one) && one.name === name
    if (rest.length === 0 && !('after' in change)) return value.filter((one) => !is(one))
    if (!value.some(is)) return 'after' in change && rest.length === 0 ? [...value, change.after] : value
    return value.map((one: unknown) => (is(one) ? put(one, rest, change) : one))
  }
  const fields = isFields(value) ? value : {}
  if (rest.length === 0 && !('after' in change)) {
    const { [field]: _gone, ...others } = fields
    return others
  }
  return { ...fields, [field]: put(fields[field], rest, change) }
}

/** `spec.template.spec.containers[web].image` */
export function formatPath(path: Path): string {
  return path.reduce((before, field) => (field.startsWith('[') ? before + field : before ? `${before}.${field}` : field), '')
}
