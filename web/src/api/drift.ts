// Compares the desired state of an object in a cluster with the live object: fields that differ, with their field managers. Fields that
// only the member has (defaults, status, its own annotations) are listed separately, since nothing else is desired for them.

export interface Owner {
  manager: string
  operation?: string
  time?: string
}

export interface Differing {
  /** In kubectl's notation: spec.template.spec.containers[0].image */
  path: string
  wanted?: unknown
  live?: unknown
  owners: Owner[]
}

export interface Drift {
  /** Fields whose live value differs from the desired one. */
  differing: Differing[]
  /** Fields that only the member has. */
  added: Differing[]
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

type Step = string | number | Record<string, unknown>

/** Fields maintained by the member that are not shown. */
const OWN = ['status', 'metadata.managedFields', 'metadata.uid', 'metadata.resourceVersion', 'metadata.generation', 'metadata.creationTimestamp', 'metadata.selfLink']

/** Fields that identify list items, in the order in which they are tried. */
const KEYS = ['name', 'key', 'containerPort', 'port', 'mountPath', 'type', 'ip']

const isMap = (value: unknown): value is Record<string, unknown> => typeof value === 'object' && value !== null && !Array.isArray(value)

/** Compares the desired with the live object. */
export function driftOf(wanted: unknown, live: unknown): Drift {
  const drift: Drift = { differing: [], added: [] }
  const managed = managedBy(live)
  const owners = (steps: Step[]) => ownersOf(managed, steps)
  compare(wanted, live, '', [], drift, owners)
  return drift
}

function compare(wanted: unknown, live: unknown, path: string, steps: Step[], drift: Drift, owners: (steps: Step[]) => Owner[]): void {
  if (OWN.includes(path)) return
  if (isMap(wanted) && isMap(live)) {
    for (const key of new Set([...Object.keys(wanted), ...Object.keys(live)])) {
      compare(wanted[key], live[key], member(path, key), [...steps, key], drift, owners)
    }
    return
  }
  if (Array.isArray(wanted) && Array.isArray(live) && [...wanted, ...live].every(isMap)) {
    const key = KEYS.find((name) => [...wanted, ...live].every((item) => isMap(item) && item[name] !== undefined))
    const of = (items: unknown[], item: Record<string, unknown>) => items.find((other) => isMap(other) && key !== undefined && other[key] === item[key])
    wanted.forEach((item, nth) => {
      const there = key === undefined ? live[nth] : of(live, item as Record<string, unknown>)
      compare(item, there, `${path}[${nth}]`, [...steps, key === undefined ? nth : { [key]: (item as Record<string, unknown>)[key] }], drift, owners)
    })
    const others = key === undefined ? live.slice(wanted.length) : live.filter((item) => !of(wanted, item as Record<string, unknown>))
    others.forEach((item) => {
      const nth = live.indexOf(item)
      drift.added.push({ path: `${path}[${nth}]`, live: item, owners: owners([...steps, key === undefined ? nth : { [key]: (item as Record<string, unknown>)[key] }]) })
    })
    return
  }
  if (same(wanted, live)) return
  const one = { path, ...(wanted !== undefined && { wanted }), ...(live !== undefined && { live }), owners: live === undefined ? [] : owners(steps) }
  // API servers treat empty and absent values as equal.
  if (empty(wanted) && empty(live)) return
  if (wanted === undefined) drift.added.push(one)
  else drift.differing.push(one)
}

function member(path: string, key: string): string {
  const plain = /^[A-Za-z_][\w-]*$/.test(key)
  if (!plain) return `${path}[${key}]`
  return path === '' ? key : `${path}.${key}`
}

const empty = (value: unknown) => value === undefined || value === null || (isMap(value) && Object.keys(value).length === 0) || (Array.isArray(value) && value.length === 0)

function same(a: unknown, b: unknown): boolean {
  if (a === b) return true
  if (Array.isArray(a) && Array.isArray(b)) return a.length === b.length && a.every((item, nth) => same(item, b[nth]))
  if (isMap(a) && isMap(b)) {
    const keys = new Set([...Object.keys(a), ...Object.keys(b)])
    return [...keys].every((key) => same(a[key], b[key]))
  }
  return false
}

function managedBy(live: unknown): ManagedFields[] {
  const metadata = isMap(live) ? live.metadata : undefined
  const managed = isMap(metadata) ? metadata.managedFields : undefined
  return Array.isArray(managed) ? (managed as ManagedFields[]) : []
}

/** Managers of a field: those whose field sets contain it or end above it. */
export function ownersOf(managed: ManagedFields[], steps: Step[]): Owner[] {
  return managed
    .filter(({ fieldsV1 }) => fieldsV1 !== undefined && holds(fieldsV1, steps))
    .map(({ manager = '', operation, time }) => ({ manager, ...(operation && { operation }), ...(time && { time }) }))
}

function holds(fields: Fields, steps: Step[]): boolean {
  const [step, ...rest] = steps
  if (step === undefined) return true
  const below = Object.entries(fields).filter(([key]) => key !== '.')
  // A manager owns the whole subtree.
  if (below.length === 0) return true
  const found = below.find(([key]) => leadsTo(key, step))
  return found !== undefined && holds(found[1], rest)
}

function leadsTo(key: string, step: Step): boolean {
  if (typeof step === 'string') return key === `f:${step}`
  if (typeof step === 'number') return key === `i:${step}`
  if (!key.startsWith('k:')) return false
  try {
    const named = JSON.parse(key.slice(2)) as Record<string, unknown>
    return Object.entries(step).every(([name, value]) => named[name] === value)
  } catch {
    return false
  }
}
