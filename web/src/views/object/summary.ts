// Summarizes a change of an object in one line: `image v1 → v2`. Has no side effects.
import { printJson } from '../../api/json'
import type { Difference } from '../../api/propagation'
import type { KubeObject } from '../../api/types'
import type { HistoryText } from '../../text/history'
import { toFieldPath, isVolatile } from './objects'

/** Maximum number of parts in a summary; further ones are counted. */
const MAX_PARTS = 3
/** Maximum length of a value that is shown. */
const MAX_VALUE_CHARACTERS = 40
const RESTARTED_AT_PATH = '/spec/template/metadata/annotations/kubectl.kubernetes.io~1restartedAt'

/** The most important differences; those in the status are omitted. */
export function summaryOf(differences: readonly Difference[], t: HistoryText): string {
  const visible = differences.filter(({ path }) => !isVolatile(path))
  if (visible.length === 0) return differences.length > 0 ? t.statusOnly : t.noChange
  const parts = [...new Set([...visible].sort((left, right) => rank(left.path) - rank(right.path)).map((difference) => partOf(difference, t)))]
  return [...parts.slice(0, MAX_PARTS), ...(parts.length > MAX_PARTS ? [t.moreChanges(parts.length - MAX_PARTS)] : [])].join(', ')
}

/** Removes the values of a Secret from its differences. An object takes the place of a value, because the summary does not show objects. */
export function withoutSecretValues(differences: readonly Difference[]): Difference[] {
  const hide = (value: unknown) => (value === undefined ? undefined : {})
  return differences.map((difference) => (/^\/(data|stringData)\b/.test(difference.path) ? { ...difference, before: hide(difference.before), after: hide(difference.after) } : difference))
}

/** Sort order of a difference: images and replicas first, metadata last. */
function rank(path: string): number {
  if (/\/image$/.test(path)) return 0
  if (path === '/spec/replicas' || path === RESTARTED_AT_PATH) return 1
  return path.startsWith('/metadata/') ? 3 : 2
}

function partOf({ path, before, after }: Difference, t: HistoryText): string {
  if (path === RESTARTED_AT_PATH) return t.restarted
  const name = shortName(path)
  if (before === undefined) return t.added(name)
  if (after === undefined) return t.removed(name)
  const [oldText, newText] = /\/image$/.test(path) ? shortImages(String(before), String(after)) : [shortText(before), shortText(after)]
  return oldText === undefined || newText === undefined ? t.changed(name) : `${name} ${oldText} → ${newText}`
}

/** The last field of a path, with the index or key of a list item or map entry. */
function shortName(path: string): string {
  const field = toFieldPath(path)
  const last = /(?:^|\.)([^.[\]]+(?:\[\d+\]|\["[^"]*"\])*)$/.exec(field)?.[1]
  return last ?? field
}

/** Shortens images of the same repository to their tags or digests. */
function shortImages(before: string, after: string): [string, string] {
  const split = (image: string) => /^(.+?)(?:(@.+)|:([^/:]+))$/.exec(image)
  const [oldParts, newParts] = [split(before), split(after)]
  if (oldParts?.[1] === undefined || oldParts[1] !== newParts?.[1]) return [before, after]
  const tag = (match: RegExpExecArray) => match[3] ?? (match[2] ?? '').slice(0, '@sha256:'.length + 12)
  return [tag(oldParts), tag(newParts)]
}

/** A value as text; undefined if it is too long for the summary, or an object. */
function shortText(value: unknown): string | undefined {
  if (typeof value === 'object' && value !== null) return undefined
  const text = typeof value === 'string' ? value : printJson(value)
  return text.length > MAX_VALUE_CHARACTERS || text.includes('\n') ? undefined : text || '""'
}

/** Maximum difference between the time of a field manager, which is in whole seconds, and the start time of a version. */
const MAX_TIME_DIFFERENCE_SECONDS = 2

/** True if an object has the managers of its fields. Cached versions have them only if the server keeps them (`--cache-managed-fields`). */
export const hasManagers = (object: KubeObject | undefined): boolean => Array.isArray(object?.metadata.managedFields)

/** The only field manager that wrote at a time; undefined if there is none or several, or it has written again since. */
export function managerAt(object: KubeObject | undefined, time: string): string | undefined {
  const at = Date.parse(time) / 1000
  const managers = Array.isArray(object?.metadata.managedFields) ? (object.metadata.managedFields as { manager?: string; time?: string; subresource?: string }[]) : []
  const candidates = managers.filter((manager) => manager.subresource !== 'status' && manager.time !== undefined && Math.abs(Date.parse(manager.time) / 1000 - at) <= MAX_TIME_DIFFERENCE_SECONDS)
  return candidates.length === 1 ? candidates[0]?.manager : undefined
}
