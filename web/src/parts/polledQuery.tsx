// Polling queries of the fleet and propagation views, and their error messages.
import { keepPreviousData, QueryClient, QueryClientProvider, useQuery, type UseQueryResult } from '@tanstack/react-query'
import type { ReactNode } from 'react'
import { ApiError, viewErrorOf } from '../api/client'
import { TimeoutError } from '../api/kube'
import { useOnConnectionRestored } from '../api/useConnection'
import { useTextOf } from '../text'
import { queryText } from '../text/query'
import { Skeleton } from './Skeleton'
import './panels.css'

const queries = new QueryClient({ defaultOptions: { queries: { retry: 1, staleTime: 2_000, networkMode: 'always' } } })

export function QueryProvider({ children }: { children: ReactNode }) {
  useOnConnectionRestored(() => void queries.invalidateQueries())
  return <QueryClientProvider client={queries}>{children}</QueryClientProvider>
}

/** Queries every `every` milliseconds while the component is mounted (default 5000). Forbidden requests are not repeated. */
export function usePolledQuery<T>(key: unknown[], send: (signal: AbortSignal) => Promise<T>, intervalMs: number | false = 5_000, enabled = true): UseQueryResult<T> {
  return useQuery<T>({
    queryKey: key,
    queryFn: ({ signal }) => send(signal),
    enabled,
    placeholderData: keepPreviousData,
    refetchOnWindowFocus: intervalMs !== false,
    refetchInterval: ({ state: { error } }) => (error instanceof ApiError && error.code === 403 ? false : intervalMs),
    retry: (failures, error) => failures < 1 && !(error instanceof ApiError && error.code < 500) && !(error instanceof TimeoutError),
  })
}

/** Shows why a request failed, with the next step. `from`: the cluster that was queried. */
export function ErrorMessage({ error, from }: { error: unknown; from?: string | undefined }) {
  const t = useTextOf(queryText)
  if (!error) return null
  return (
    <p role="alert" className="problem">
      {describeError(error, t, from)}
      {error instanceof ApiError && error.code === 401 && (
        <>
          {' '}
          <button type="button" onClick={() => window.location.reload()}>
            {t.signInAgain}
          </button>
        </>
      )}
    </p>
  )
}

export function describeError(error: unknown, t: (typeof queryText)['en'], from?: string): string {
  if (error instanceof TimeoutError) return t.timedOut(from ?? t.server)
  if (!(error instanceof ApiError)) return t.unreachable(error instanceof Error ? error.message : String(error))
  if (error.code === 401) return t.signedOut(error.message)
  if (error.code === 403) return t.forbidden(error.message)
  if (error.code === 404) return t.notFound(error.message)
  return t.errorResponse(from ?? t.server, error.message, error.code)
}

/** Renders the data of a query, or its loading or error state. */
export function QueryResult<T>({ query: { data, error }, from, children }: { query: UseQueryResult<T>; from?: string; children: (data: T) => ReactNode }) {
  return (
    <>
      <ErrorMessage error={viewErrorOf(error)} from={from} />
      {data !== undefined ? children(data) : viewErrorOf(error) === undefined && <Skeleton />}
    </>
  )
}
