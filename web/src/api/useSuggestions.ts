import { quote } from './query'
import { characterOffset, byteOffset } from './tokens'
import type { Suggestion, Suggestions } from './types'
import { API } from './useSearch'
import { useTypedRequest } from './useTypeAhead'

/**
 * Completions at the cursor. Counts respect the rest of the query and the user's permissions. Previous suggestions stay until new ones arrive, as
 * long as the same term is typed.
 */
export function useSuggestions(query: string, at: number, enabled: boolean): Suggestions | undefined {
  // On an error there are no suggestions; the query can still be sent.
  const response = useTypedRequest<Suggestions>(enabled ? `${API}/suggest?${new URLSearchParams({ limit: '12', q: query, cursor: `${byteOffset(query, at)}` })}` : undefined)
  const requested = response && new URLSearchParams(response.path.split('?')[1]).get('q')
  return response && reposition(response.body, requested ?? '', query)
}

/** Suggestions that were requested for another query, if `query` differs from it only within their term, or `undefined`. */
export function reposition(suggestions: Suggestions, requested: string, query: string): Suggestions | undefined {
  const { start, end } = suggestions
  const [from, to] = [characterOffset(requested, start), characterOffset(requested, end)]
  const [before, after] = [requested.slice(0, from), requested.slice(to)]
  const until = query.length - after.length
  if (until < from || !query.startsWith(before) || !query.endsWith(after)) return undefined
  if (separators(query.slice(from, until)) !== separators(requested.slice(from, to))) return undefined
  return { ...suggestions, end: byteOffset(query, until) }
}

/** The characters of a term at which another term or value may begin. */
const separators = (term: string) => term.replace(/[^\s:=()",]/g, '')

/** The query with an inserted suggestion, and the new cursor position. */
export function insertSuggestion(query: string, { start, end, field }: Suggestions, { text, count }: Suggestion): { query: string; at: number } {
  const before = query.slice(0, characterOffset(query, start))
  const after = query.slice(characterOffset(query, end))
  const term = field === undefined || count === undefined ? text : formatValue(field, text)
  // After a field its value is typed, and after a label's key the label's value. Any other value is complete.
  const isComplete = field !== undefined && !term.endsWith('=')
  const inserted = isComplete && !/^[\s)]/.test(after) ? `${term} ` : term
  const head = before + inserted
  return { query: head + after, at: head.length + (isComplete && inserted === term && after !== '' ? 1 : 0) }
}

function formatValue(field: string, text: string): string {
  if (field !== 'label' && field !== 'ann' && field !== 'cluster.label') return quote(text)
  if (!text.includes('=')) return `${text}=`
  return /[\s,()"]/.test(text) ? quote(text) : text
}
