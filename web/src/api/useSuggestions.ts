import { useEffect, useState } from 'react'
import { getJson } from './client'
import { quote } from './query'
import { characterOffset, byteOffset } from './tokens'
import type { Suggestion, Suggestions } from './types'
import { API } from './useSearch'

/** Debounce interval of key presses, in milliseconds. */
const DEBOUNCE_MS = 60

/** Completions at the cursor. Counts respect the rest of the query and the user's permissions. Previous suggestions stay until new ones arrive. */
export function useSuggestions(query: string, at: number, enabled: boolean): Suggestions | undefined {
  const [suggestions, setSuggestions] = useState<Suggestions>()
  useEffect(() => {
    if (!enabled) return setSuggestions(undefined)
    const abort = new AbortController()
    const timer = setTimeout(() => {
      getJson<Suggestions>(`${API}/suggest?limit=12&q=${encodeURIComponent(query)}&cursor=${byteOffset(query, at)}`, abort.signal).then(
        setSuggestions,
        // Without suggestions the query can still be sent.
        () => !abort.signal.aborted && setSuggestions(undefined),
      )
    }, DEBOUNCE_MS)
    return () => {
      clearTimeout(timer)
      abort.abort()
    }
  }, [query, at, enabled])
  return suggestions
}

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
