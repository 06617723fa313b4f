import { useLayoutEffect, useRef } from 'react'
import { quote } from './query'
import { characterOffset, byteOffset } from './tokens'
import type { Suggestion, Suggestions } from './types'
import { API } from './searchApi'
import { useTypedRequest, type TypedResponse } from './useTypeAhead'

/** Maximum number of suggestions. */
export const MAX_SUGGESTIONS = 12
/** Fields for which the server suggests all values that contain the typed text, starting with those that begin with it and the most frequent ones. */
const SEARCHED_VALUES = new Set(['kind', 'status', 'cluster', 'namespace', 'image', 'reason', 'node', 'type'])

/**
 * Completions at the cursor. Counts respect the rest of the query and the user's permissions. Previous suggestions stay until new ones arrive, as
 * long as the same term is typed. No request is sent for text that only restricts them.
 */
export function useSuggestions(query: string, at: number, enabled: boolean): Suggestions | undefined {
  // On an error there are no suggestions; the query can still be sent.
  const latest = useRef<TypedResponse<Suggestions>>(undefined)
  const previous = enabled ? latest.current : undefined
  const narrowed = previous && narrow(previous.body, requestOf(previous.path), query, at)
  const path = `${API}/suggest?${new URLSearchParams({ limit: `${MAX_SUGGESTIONS}`, q: query, cursor: `${byteOffset(query, at)}` })}`
  const response = useTypedRequest<Suggestions>(!enabled ? undefined : previous && narrowed ? previous.path : path)
  useLayoutEffect(() => {
    latest.current = response
  })
  if (!response) return undefined
  const requested = requestOf(response.path)
  return narrow(response.body, requested, query, at) ?? reposition(response.body, requested.query, query)
}

interface SuggestRequest {
  query: string
  /** Byte offset of the cursor. */
  cursor: number
}

function requestOf(path: string): SuggestRequest {
  const parameters = new URLSearchParams(path.split('?')[1])
  return { query: parameters.get('q') ?? '', cursor: Number(parameters.get('cursor')) }
}

/**
 * Suggestions that the server would return for `query`. They are selected from the received ones, so these must be complete, and since their
 * request, text may only have been appended to the value; otherwise `undefined`.
 */
export function narrow(suggestions: Suggestions, requested: SuggestRequest, query: string, at: number): Suggestions | undefined {
  const { start, end, field, items, incomplete } = suggestions
  if (field === undefined || incomplete || !SEARCHED_VALUES.has(field) || items.length >= MAX_SUGGESTIONS) return undefined
  const current = reposition(suggestions, requested.query, query)
  if (!current || requested.cursor !== end || byteOffset(query, at) !== current.end) return undefined
  const valueOf = (text: string, until: number) => text.slice(characterOffset(text, start), characterOffset(text, until)).toLowerCase()
  const value = valueOf(query, current.end)
  // A leading `!` is an operator.
  if (!value.startsWith(valueOf(requested.query, end)) || value.startsWith('!')) return undefined
  const isPrefix = ({ text }: Suggestion) => Number(text.toLowerCase().startsWith(value))
  const compare = (a: Suggestion, b: Suggestion) => isPrefix(b) - isPrefix(a) || (b.count ?? 0) - (a.count ?? 0) || (a.text < b.text ? -1 : 1)
  return { ...current, items: items.filter(({ text }) => text.toLowerCase().includes(value)).toSorted(compare) }
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
