// Saved searches in the control plane: the user's own and shared ones.
import { useCallback, useEffect, useState } from 'react'
import { getJson, request } from './client'
import type { SavedSearch } from './types'
import { API } from './useSearch'

const PATH = `${API}/savedsearches`

export interface Draft {
  title: string
  query: string
  shared: boolean
}

function send(method: string, path: string, body: unknown): Promise<Response> {
  return request(path, { method, headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body) })
}

export async function keep(spec: Draft): Promise<void> {
  await send('POST', PATH, { spec })
}

export async function replace({ metadata, spec }: SavedSearch, changed: Draft): Promise<void> {
  await send('PUT', `${PATH}/${metadata.name}`, { metadata, spec: { ...spec, ...changed } })
}

export async function remove({ metadata }: SavedSearch): Promise<void> {
  await request(`${PATH}/${metadata.name}`, { method: 'DELETE' })
}

export interface Kept {
  searches: SavedSearch[] | undefined
  error: string | undefined
  reload: () => void
}

/** Saved searches that the user may read. */
export function useSaved(): Kept {
  const [searches, setSearches] = useState<SavedSearch[]>()
  const [error, setError] = useState<string>()
  const [asked, setAsked] = useState(0)
  useEffect(() => {
    const abort = new AbortController()
    getJson<{ items: SavedSearch[] }>(PATH, abort.signal).then(
      ({ items }) => {
        setSearches(items)
        setError(undefined)
      },
      (problem: unknown) => !abort.signal.aborted && setError(problem instanceof Error ? problem.message : String(problem)),
    )
    return () => abort.abort()
  }, [asked])
  return { searches, error, reload: useCallback(() => setAsked((n) => n + 1), []) }
}
