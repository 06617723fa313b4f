// Three-way merge of the base of an edit, the edited object, and the current object. Has no side effects.
import { printJson } from '../../api/json'

/** Path of a value: field names, names of list elements, or else indices. */
export type Path = readonly string[]

export interface Change {
  path: Path
  /** Absent: the field did not exist. */
  before?: unknown
  /** Absent: the field was removed. */
  after?: unknown
}

type Fields = Record<string, unknown>

const isFields = (value: unknown): value is Fields => typeof value === 'object' && value !== null && !Array.isArray(value)
export const isEqual = (left: unknown, right: unknown): boolean => printJson(left) === printJson(right)

/** List elements by name, as Kubernetes merges containers, ports and volumes; undefined unless all have distinct names. */
function elementsByName(value: unknown): Map<string, unknown> | undefined {
  if (!Array.isArray(value)) return undefined
  const elements = new Map(value.map((element: unknown) => [isFields(element) && typeof element.name === 'string' ? `[${element.name}]` : '', element]))
  return elements.size === value.length && !elements.has('') ? elements : undefined
}

/** Changes from one value to another. */
export function computeChanges(before: unknown, after: unknown, path: Path = []): Change[] {
  if (isEqual(before, after)) return []
  if (isFields(before) && isFields(after)) {
    const fields = new Set([...Object.keys(before), ...Object.keys(after)])
    return [...fields].flatMap((field) => computeFieldChanges(before, after, field, path))
  }
  const oldElements = elementsByName(before)
  const newElements = elementsByName(after)
  if (oldElements && newElements) {
    const elements = new Set([...oldElements.keys(), ...newElements.keys()])
    return [...elements].flatMap((element) => computeFieldChanges(Object.fromEntries(oldElements), Object.fromEntries(newElements), element, path))
  }
  return [{ path, before, after }]
}

function computeFieldChanges(before: Fields, after: Fields, field: string, path: Path): Change[] {
  const fieldPath = [...path, field]
  if (field in before && field in after) return computeChanges(before[field], after[field], fieldPath)
  return field in before ? [{ path: fieldPath, before: before[field] }] : [{ path: fieldPath, after: after[field] }]
}

const isPrefix = (prefix: Path, path: Path) => prefix.every((field, nth) => path[nth] === field)

/** True for fields that the server maintains. */
export const isServerField = ({ path }: Change) =>
  path[0] === 'status' || (path[0] === 'metadata' && ['resourceVersion', 'managedFields', 'generation'].includes(path[1] ?? ''))

export interface Conflict {
  mine: Change
  theirs: Change
}

export interface MergeResult {
  /** Changes on the server, except for fields that it maintains. */
  theirs: Change[]
  mine: Change[]
  /** Changed on both sides, to different values. */
  conflicts: Conflict[]
}

/** Changes of both sides since their common base, and their conflicts. */
export function mergeThreeWay(base: unknown, mine: unknown, theirs: unknown): MergeResult {
  const serverChanges = computeChanges(base, theirs)
  const ownChanges = computeChanges(base, mine).filter((change) => !isServerField(change))
  const conflicts = ownChanges.flatMap((ownChange) => serverChanges.filter((serverChange) => (isPrefix(ownChange.path, serverChange.path) || isPrefix(serverChange.path, ownChange.path)) && !isEqual(ownChange, serverChange)).map((serverChange) => ({ mine: ownChange, theirs: serverChange })))
  return { theirs: serverChanges.filter((change) => !isServerField(change)), mine: ownChanges, conflicts: conflicts }
}

/** Applies changes to an object. */
export function apply(onto: unknown, changes: Change[]): unknown {
  return changes.reduce((value, change) => applyChange(value, change.path, change), onto)
}

function applyChange(value: unknown, path: Path, change: Change): unknown {
  const [field, ...rest] = path
  if (field === undefined) return change.after
  const element = /^\[(.*)\]$/s.exec(field)
  if (element && Array.isArray(value)) {
    const name = element[1]
    const hasName = (item: unknown) => isFields(item) && item.name === name
    if (rest.length === 0 && !('after' in change)) return value.filter((item) => !hasName(item))
    if (!value.some(hasName)) return 'after' in change && rest.length === 0 ? [...value, change.after] : value
    return value.map((item: unknown) => (hasName(item) ? applyChange(item, rest, change) : item))
  }
  const fields = isFields(value) ? value : {}
  if (rest.length === 0 && !('after' in change)) {
    const { [field]: _removed, ...others } = fields
    return others
  }
  return { ...fields, [field]: applyChange(fields[field], rest, change) }
}

/** Formats a path: `spec.template.spec.containers[web].image`. */
export function formatPath(path: Path): string {
  return path.reduce((before, field) => (field.startsWith('[') ? before + field : before ? `${before}.${field}` : field), '')
}
