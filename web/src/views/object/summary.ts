// A change of an object in one line: `image v1 → v2`. Pure.
import { printJson } from '../../api/json'
import type { Difference } from '../../api/propagation'
import type { KubeObject } from '../../api/types'
import type { HistoryText } from '../../text/history'
import { dotted, isNoise } from './objects'

/** Parts of a line; more are counted. */
const MOST = 3
/** Characters of a value that is shown. */
const LONGEST = 40
const RESTARTED = '/spec/template/metadata/annotations/kubectl.kubernetes.io~1restartedAt'

/** The most telling differences; those in the status are left out. */
export function summaryOf(differences: readonly Difference[], t: HistoryText): string {
  const shown = differences.filter(({ path }) => !isNoise(path))
  if (shown.length === 0) return differences.length > 0 ? t.statusOnly : t.noChange
  const parts = [...new Set([...shown].sort((one, other) => rank(one.path) - rank(other.path)).map((one) => partOf(one, t)))]
  return [...parts.slice(0, MOST), ...(parts.length > MOST ? [t.moreChanges(parts.length - MOST)] : [])].join(', ')
}

/** Without the values of a Secret: they are not shown, not even in part. */
export function withoutSecrets(differences: readonly Difference[]): Difference[] {
  const hidden = (value: unknown) => (value === undefined ? undefined : {})
  return differences.map((one) => (/^\/(data|stringData)\b/.test(one.path) ? { ...one, before: hidden(one.before), after: hidden(one.after) } : one))
}

/** Images and replicas first, metadata last. */
function rank(path: string): number {
  if (/\/image$/.test(path)) return 0
  if (path === '/spec/replicas' || path === RESTARTED) return 1
  return path.startsWith('/metadata/') ? 3 : 2
}

function partOf({ path, before, after }: Difference, t: HistoryText): string {
  if (path === RESTARTED) return t.restarted
  const name = shortName(path)
  if (before === undefined) return t.added(name)
  if (after === undefined) return t.removed(name)
  const [was, is] = /\/image$/.test(path) ? images(String(before), String(after)) : [plain(before), plain(after)]
  return was === undefined || is === undefined ? t.changed(name) : `${name} ${was} → ${is}`
}

/** The field alone; list items and map entries with what they belong to. */
function shortName(path: string): string {
  const field = dotted(path)
  const last = /(?:^|\.)([^.[\]]+(?:\[\d+\]|\["[^"]*"\])*)$/.exec(field)?.[1]
  return last ?? field
}

/** The tags, if the repository is the same. */
function images(before: string, after: string): [string, string] {
  const split = (image: string) => /^(.+?)(?:(@.+)|:([^/:]+))$/.exec(image)
  const [one, other] = [split(before), split(after)]
  if (one?.[1] === undefined || one[1] !== other?.[1]) return [before, after]
  const tag = (found: RegExpExecArray) => found[3] ?? (found[2] ?? '').slice(0, '@sha256:'.length + 12)
  return [tag(one), tag(other)]
}

/** A value that fits a line; undefined: it does not. */
function plain(value: unknown): string | undefined {
  if (typeof value === 'object' && value !== null) return undefined
  const text = typeof value === 'string' ? value : printJson(value)
  return text.length > LONGEST || text.includes('\n') ? undefined : text || '""'
}

/** Seconds between the time of a field manager, which has no fraction, and the begin of a version. */
const CLOSE = 2

/** The field manager that wrote at that time; undefined: it has written again since, or is not known. */
export function managerAt(object: KubeObject | undefined, time: string): string | undefined {
  const at = Date.parse(time) / 1000
  const managers = Array.isArray(object?.metadata.managedFields) ? (object.metadata.managedFields as { manager?: string; time?: string; subresource?: string }[]) : []
  const close = managers.filter((one) => one.subresource !== 'status' && one.time !== undefined && Math.abs(Date.parse(one.time) / 1000 - at) <= CLOSE)
  return close.length === 1 ? close[0]?.manager : undefined
}
