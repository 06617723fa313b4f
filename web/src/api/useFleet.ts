import { useEffect, useState } from 'react'
import { reported } from './client'
import { streamEvents } from './sse'
import type { FleetStatus } from './types'
import { API } from './useSearch'

/** Follows the fleet's status; reconnects with backoff and reports it. */
export function useFleet() {
  const [fleet, setFleet] = useState<FleetStatus>()
  const [problem, setProblem] = useState<string>()
  useEffect(() => {
    const abort = new AbortController()
    let timer: ReturnType<typeof setTimeout> | undefined
    let pause = 500
    const follow = () => {
      streamEvents(`${API}/status?watch=true`, abort.signal, (event) => {
        if (event.event !== 'status') return
        setFleet(JSON.parse(event.data) as FleetStatus)
        setProblem(undefined)
        pause = 500
      })
        .catch((error: unknown) => {
          if (!abort.signal.aborted && reported(error) !== undefined) setProblem(error instanceof Error ? error.message : String(error))
        })
        .finally(() => {
          if (abort.signal.aborted) return
          timer = setTimeout(follow, pause)
          pause = Math.min(pause * 2, 10_000)
        })
    }
    follow()
    return () => {
      abort.abort()
      clearTimeout(timer)
    }
  }, [])
  return { fleet, problem }
}
