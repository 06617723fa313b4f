import { useEffect, useState } from 'react'
import { ReadCache } from './readCache'
import { useOnConnectionRestored } from './useConnection'

/** Time after which the paths of a kind are read again, because its definition may have changed. */
const MAX_AGE_MS = 60_000
/** Maximum number of paths of a kind. The server allows 32 columns. */
const MAX_PATHS = 16

const paths = new ReadCache(async (kindQuery) => {
  const { readPrintedColumns } = await import('./printed')
  const names = await readPrintedColumns(kindQuery)
  return names.filter((name) => name.startsWith('.')).slice(0, MAX_PATHS)
}, MAX_AGE_MS)

const NO_PATHS: readonly string[] = []

/**
 * Paths of the columns that the definition of a custom resource prints; none until they are read, for other kinds, and for `undefined`. They are
 * read again for each query if they are old or the last request failed. `kindQuery` matches the objects of one kind.
 */
export function useDefinitionPaths(kindQuery: string | undefined, q: string): readonly string[] {
  const [result, setResult] = useState<{ kindQuery: string; paths: readonly string[] }>()
  const [attempt, setAttempt] = useState(0)
  useOnConnectionRestored(() => setAttempt((before) => before + 1))
  useEffect(() => {
    if (kindQuery === undefined) return
    let isCurrent = true
    paths.read(kindQuery).then(
      (names) => isCurrent && setResult({ kindQuery, paths: names }),
      // Without them, the table has the columns that hits contain. The next query reads them again.
      () => undefined,
    )
    return () => {
      isCurrent = false
    }
  }, [kindQuery, q, attempt])
  return result !== undefined && result.kindQuery === kindQuery ? result.paths : NO_PATHS
}
