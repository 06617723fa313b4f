import { useEffect, useState } from 'react'
import { viewErrorOf } from './client'
import { streamEvents } from './sse'
import type { FleetStatus } from './types'
import { API } from './searchApi'

/** Streams the fleet's status; reconnects with backoff, and returns the error in the meantime. */
export function useFleet() {
  const [fleet, setFleet] = useState<FleetStatus>()
  const [errorMessage, setErrorMessage] = useState<string>()
  useEffect(() => {
    const abort = new AbortController()
    let timer: ReturnType<typeof setTimeout> | undefined
    let retryDelayMs = 500
    const follow = () => {
      streamEvents(`${API}/status?watch=true`, abort.signal, (event) => {
        if (event.event !== 'status') return
        setFleet(JSON.parse(event.data) as FleetStatus)
        setErrorMessage(undefined)
        retryDelayMs = 500
      })
        .catch((error: unknown) => {
          if (!abort.signal.aborted && viewErrorOf(error) !== undefined) setErrorMessage(error instanceof Error ? error.message : String(error))
        })
        .finally(() => {
          if (abort.signal.aborted) return
          timer = setTimeout(follow, retryDelayMs)
          retryDelayMs = Math.min(retryDelayMs * 2, 10_000)
        })
    }
    follow()
    return () => {
      abort.abort()
      clearTimeout(timer)
    }
  }, [])
  return { fleet, errorMessage }
}
