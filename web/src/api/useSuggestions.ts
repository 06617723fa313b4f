import { useEffect, useState } from 'react'
import { getJson } from './client'
import { quote } from './query'
import { fromBytes, toBytes } from './tokens'
import type { Suggestion, Suggestions } from './types'
import { API } from './useSearch'

/** Debounce interval of key presses, in milliseconds. */
const AFTER = 60

/** Completions at the cursor, with counts within the rest of the query and the caller's permissions; kept until new ones arrive. */
export function useSuggestions(query: string, at: number, wanted: boolean): Suggestions | undefined {
  const [found, setFound] = useState<Suggestions>()
  useEffect(() => {
    if (!wanted) return setFound(undefined)
    const abort = new AbortController()
    const timer = setTimeout(() => {
      getJson<Suggestions>(`${API}/suggest?limit=12&q=${encodeURIComponent(query)}&cursor=${toBytes(query, at)}`, abort.signal).then(
        setFound,
        // Without suggestions the query can still be sent.
        () => !abort.signal.aborted && setFound(undefined),
      )
    }, AFTER)
    return () => {
      clearTimeout(timer)
      abort.abort()
    }
  }, [query, at, wanted])
  return found
}

/** The query with an inserted suggestion, and the new cursor position. */
export function accept(query: string, { start, end, field }: Suggestions, { text, count }: Suggestion): { query: string; at: number } {
  const before = query.slice(0, fromBytes(query, start))
  const after = query.slice(fromBytes(query, end))
  const written = field === undefined || count === undefined ? text : value(field, text)
  // A field is followed by its value, a label's key by the label's value; a value is complete.
  const whole = field !== undefined && !written.endsWith('=')
  const added = whole && !/^[\s)]/.test(after) ? `${written} ` : written
  const left = before + added
  return { query: left + after, at: left.length + (whole && added === written && after !== '' ? 1 : 0) }
}

function value(field: string, text: string): string {
  if (field !== 'label' && field !== 'ann' && field !== 'cluster.label') return quote(text)
  if (!text.includes('=')) return `${text}=`
  return /[\s,()"]/.test(text) ? quote(text) : text
}
