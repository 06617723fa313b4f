// The journal: moves of workloads and their causes (docs/JOURNAL.md). Entries come from the journal API, which follows causes, or from
// Events of a search.
import { CONTROL_PLANE, getJson, type ObjectRef, qualifiedName } from './client'
import type { Binding, ObjectReference } from './karmada'
import type { KubeEvent, KubeObject, SkippedCluster } from './types'
import { API } from './searchApi'

const CAUSE_ANNOTATION = 'journal.crowsnest.io/cause'
const ENTRY_ANNOTATION = 'journal.crowsnest.io/entry'

/** The object or the cause of an entry. */
export interface Subject {
  apiVersion?: string
  kind?: string
  namespace?: string
  name?: string
}

export interface Cause {
  text?: string
  ref?: Subject
  /** Namespace and name of the Event of the preceding entry. */
  event?: string
}

export interface Entry {
  /** Namespace and name of its Event. */
  id: string
  at: string
  action: string
  type: string
  subject: Subject
  message: string
  cause: Cause
  /** Known preceding entries, up to the root cause. */
  causes: string[]
  /** Included only as a cause: it concerns another object. */
  isCause?: boolean
}

export interface Journal {
  entries: Entry[]
  total: number
  keptForSeconds: number
  skipped: SkippedCluster[]
  notices: { message: string }[]
}

/** Time in the syntax of the query language, and the range around it. Without `at`, all retained entries are returned. */
export interface JournalTime {
  at?: string | undefined
  within?: string | undefined
}

export const WITHIN_OPTIONS = ['1m', '5m', '15m', '1h', '6h'] as const

export function readJournal(about: string, { at, within }: JournalTime, signal?: AbortSignal): Promise<Journal> {
  const parameters = new URLSearchParams({ about, limit: '200', ...(at && { at, ...(within && { within }) }) })
  return getJson<Journal>(`${API}/journal?${parameters}`, signal)
}

/** Name of an object in the journal: `RESOURCE/NAMESPACE/NAME`. For a binding, the name of its template; undefined if it is not known. */
export function journalNameOf(ref: ObjectRef, object: KubeObject | undefined): string | undefined {
  if (ref.resource.endsWith('resourcebindings')) {
    const bound = (object as Partial<Binding> | undefined)?.spec?.resource
    return bound && referenceText(bound)
  }
  return [qualifiedName(ref.resource, ref.apiVersion), ref.namespace ?? '', ref.name].join('/')
}

const referenceText = ({ apiVersion, kind, namespace, name }: ObjectReference) => [qualifiedName(kind.toLowerCase(), apiVersion), namespace ?? '', name].join('/')

/** True if the journal can contain an object: one of the control plane, or a propagated copy. */
export function canHaveJournal({ cluster }: ObjectRef, object: KubeObject | undefined): boolean {
  return cluster === CONTROL_PLANE || object?.metadata.labels?.['karmada.io/managed'] === 'true'
}

/** Query for the entries of the last time span such as `1h`, including Events that the API server has deleted. */
export const journalQuery = (last: string) => `kind:event cluster:"${CONTROL_PLANE}" ann:${ENTRY_ANNOTATION} last:<${last} (is:deleted OR -is:deleted)`

function annotation<T>(event: KubeObject, key: string): T | undefined {
  try {
    return JSON.parse(event.metadata.annotations?.[key] ?? '') as T
  } catch {
    return undefined
  }
}

/** Journal entries in a list of Events, oldest first, with those causes that are in the list. Other Events are skipped. */
export function parseEntries(events: KubeEvent[]): Entry[] {
  const entries = new Map<string, Entry>()
  for (const event of events) {
    const cause = annotation<Cause>(event, CAUSE_ANNOTATION)
    const entry = annotation<{ action?: string }>(event, ENTRY_ANNOTATION)
    if (!cause || !entry) continue
    const id = `${event.metadata.namespace}/${event.metadata.name}`
    entries.set(id, {
      id,
      at: event.eventTime ?? event.metadata.creationTimestamp ?? '',
      action: entry.action ?? event.reason ?? '',
      type: event.type ?? '',
      subject: (event.involvedObject ?? {}) as Subject,
      message: event.message ?? '',
      cause,
      causes: [],
    })
  }
  for (const entry of entries.values()) entry.causes = causeChain(entry, entries)
  // Transition times of conditions are whole seconds, and a cause may be written after its effects. Sort a cause by the second of its
  // first effect, and before its effects within that second.
  const seconds = new Map<string, string>()
  for (const { id, at, causes } of entries.values()) {
    const second = at.slice(0, 19)
    for (const cause of [id, ...causes]) {
      const first = seconds.get(cause)
      if (first === undefined || second < first) seconds.set(cause, second)
    }
  }
  const second = ({ id }: Entry) => seconds.get(id) ?? ''
  return [...entries.values()].sort((a, b) => second(a).localeCompare(second(b)) || a.causes.length - b.causes.length || a.at.localeCompare(b.at))
}

function causeChain(entry: Entry, entries: ReadonlyMap<string, Entry>): string[] {
  const chain: string[] = []
  for (let next = entry.cause.event; next !== undefined && entries.has(next) && !chain.includes(next) && next !== entry.id; next = entries.get(next)?.cause.event) {
    chain.push(next)
  }
  return chain
}
