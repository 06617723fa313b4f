// Client of the saved searches in the control plane: the user's own and shared ones.
import { useCallback, useEffect, useState } from 'react'
import { getJson, request } from './client'
import type { SavedSearch } from './types'
import { API } from './searchApi'

const PATH = `${API}/savedsearches`

export interface SavedSearchDraft {
  title: string
  query: string
  shared: boolean
}

function send(method: string, path: string, body: unknown): Promise<Response> {
  return request(path, { method, headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body) })
}

export async function createSavedSearch(spec: SavedSearchDraft): Promise<void> {
  await send('POST', PATH, { spec })
}

export async function replaceSavedSearch({ metadata, spec }: SavedSearch, changed: SavedSearchDraft): Promise<void> {
  await send('PUT', `${PATH}/${metadata.name}`, { metadata, spec: { ...spec, ...changed } })
}

export async function deleteSavedSearch({ metadata }: SavedSearch): Promise<void> {
  await request(`${PATH}/${metadata.name}`, { method: 'DELETE' })
}

export interface SavedSearches {
  searches: SavedSearch[] | undefined
  error: string | undefined
  reload: () => void
}

/** Saved searches that the user may read. */
export function useSavedSearches(): SavedSearches {
  const [searches, setSearches] = useState<SavedSearch[]>()
  const [error, setError] = useState<string>()
  const [reloadCount, setReloadCount] = useState(0)
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
  }, [reloadCount])
  return { searches, error, reload: useCallback(() => setReloadCount((n) => n + 1), []) }
}
