// Drift of an object: compares its desired with its live state and names the field managers of fields that differ. Fields that only the
// live object has (defaults, annotations of the member) are listed separately, because no value is desired for them.

export interface FieldOwner {
  manager: string
  operation?: string
  time?: string
}

export interface FieldDifference {
  /** In kubectl's notation: spec.template.spec.containers[0].image */
  path: string
  desired?: unknown
  live?: unknown
  owners: FieldOwner[]
}

export interface Drift {
  /** Fields whose live value differs from the desired one. */
  changed: FieldDifference[]
  /** Fields that only the member has. */
  added: FieldDifference[]
}

interface ManagedFields {
  manager?: string
  operation?: string
  time?: string
  subresource?: string
  fieldsV1?: Fields
}

interface Fields {
  [key: string]: Fields
}

type PathElement = string | number | Record<string, unknown>

/** Fields maintained by the member, which are not compared. */
const MEMBER_FIELDS = ['status', 'metadata.managedFields', 'metadata.uid', 'metadata.resourceVersion', 'metadata.generation', 'metadata.creationTimestamp', 'metadata.selfLink']

/** Fields that identify list items, in the order in which they are tried. */
const LIST_KEYS = ['name', 'key', 'containerPort', 'port', 'mountPath', 'type', 'ip']

const isMap = (value: unknown): value is Record<string, unknown> => typeof value === 'object' && value !== null && !Array.isArray(value)

/** Compares the desired with the live object. */
export function computeDrift(desired: unknown, live: unknown): Drift {
  const drift: Drift = { changed: [], added: [] }
  const managed = managedFieldsOf(live)
  const owners = (steps: PathElement[]) => ownersOf(managed, steps)
  compare(desired, live, '', [], drift, owners)
  return drift
}

function compare(desired: unknown, live: unknown, path: string, steps: PathElement[], drift: Drift, owners: (steps: PathElement[]) => FieldOwner[]): void {
  if (MEMBER_FIELDS.includes(path)) return
  if (isMap(desired) && isMap(live)) {
    for (const key of new Set([...Object.keys(desired), ...Object.keys(live)])) {
      compare(desired[key], live[key], appendKey(path, key), [...steps, key], drift, owners)
    }
    return
  }
  if (Array.isArray(desired) && Array.isArray(live) && [...desired, ...live].every(isMap)) {
    const key = LIST_KEYS.find((name) => [...desired, ...live].every((item) => isMap(item) && item[name] !== undefined))
    const findByKey = (items: unknown[], item: Record<string, unknown>) => items.find((candidate) => isMap(candidate) && key !== undefined && candidate[key] === item[key])
    desired.forEach((item, nth) => {
      const counterpart = key === undefined ? live[nth] : findByKey(live, item as Record<string, unknown>)
      compare(item, counterpart, `${path}[${nth}]`, [...steps, key === undefined ? nth : { [key]: (item as Record<string, unknown>)[key] }], drift, owners)
    })
    const others = key === undefined ? live.slice(desired.length) : live.filter((item) => !findByKey(desired, item as Record<string, unknown>))
    others.forEach((item) => {
      const nth = live.indexOf(item)
      drift.added.push({ path: `${path}[${nth}]`, live: item, owners: owners([...steps, key === undefined ? nth : { [key]: (item as Record<string, unknown>)[key] }]) })
    })
    return
  }
  if (isEqual(desired, live)) return
  const difference = { path, ...(desired !== undefined && { desired }), ...(live !== undefined && { live }), owners: live === undefined ? [] : owners(steps) }
  // API servers treat empty and absent values as equal.
  if (isEmpty(desired) && isEmpty(live)) return
  if (desired === undefined) drift.added.push(difference)
  else drift.changed.push(difference)
}

function appendKey(path: string, key: string): string {
  const plain = /^[A-Za-z_][\w-]*$/.test(key)
  if (!plain) return `${path}[${key}]`
  return path === '' ? key : `${path}.${key}`
}

const isEmpty = (value: unknown) => value === undefined || value === null || (isMap(value) && Object.keys(value).length === 0) || (Array.isArray(value) && value.length === 0)

function isEqual(a: unknown, b: unknown): boolean {
  if (a === b) return true
  if (Array.isArray(a) && Array.isArray(b)) return a.length === b.length && a.every((item, nth) => isEqual(item, b[nth]))
  if (isMap(a) && isMap(b)) {
    const keys = new Set([...Object.keys(a), ...Object.keys(b)])
    return [...keys].every((key) => isEqual(a[key], b[key]))
  }
  return false
}

function managedFieldsOf(live: unknown): ManagedFields[] {
  const metadata = isMap(live) ? live.metadata : undefined
  const managed = isMap(metadata) ? metadata.managedFields : undefined
  return Array.isArray(managed) ? (managed as ManagedFields[]) : []
}

/** Managers of a field: those whose `fieldsV1` contains the field or one of its parents as a leaf. */
export function ownersOf(managed: ManagedFields[], steps: PathElement[]): FieldOwner[] {
  return managed
    .filter(({ fieldsV1 }) => fieldsV1 !== undefined && containsPath(fieldsV1, steps))
    .map(({ manager = '', operation, time }) => ({ manager, ...(operation && { operation }), ...(time && { time }) }))
}

function containsPath(fields: Fields, steps: PathElement[]): boolean {
  const [step, ...rest] = steps
  if (step === undefined) return true
  const below = Object.entries(fields).filter(([key]) => key !== '.')
  // A manager owns the complete subtree.
  if (below.length === 0) return true
  const match = below.find(([key]) => matchesElement(key, step))
  return match !== undefined && containsPath(match[1], rest)
}

function matchesElement(key: string, step: PathElement): boolean {
  if (typeof step === 'string') return key === `f:${step}`
  if (typeof step === 'number') return key === `i:${step}`
  if (!key.startsWith('k:')) return false
  try {
    const keys = JSON.parse(key.slice(2)) as Record<string, unknown>
    return Object.entries(step).every(([name, value]) => keys[name] === value)
  } catch {
    return false
  }
}
