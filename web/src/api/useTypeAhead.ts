import { useEffect, useLayoutEffect, useRef, useState } from 'react'
import { getJson } from './client'
import { TypeAhead } from './typeAhead'

/** Paces `send` while the user types. */
export function useTypeAhead<T>(send: (value: T) => void): TypeAhead<T> {
  const latest = useRef(send)
  useLayoutEffect(() => {
    latest.current = send
  })
  const [typeAhead] = useState(() => new TypeAhead<T>((value) => latest.current(value)))
  useEffect(() => () => typeAhead.cancel(), [typeAhead])
  return typeAhead
}

export interface TypedResponse<T> {
  path: string
  body: T
}

/**
 * The latest response to a path that changes while the user types; `undefined` before the first one, after an error, and without a path.
 * The previous response stays until the next one arrives: `path` is that of the response.
 */
export function useTypedRequest<T>(path: string | undefined): TypedResponse<T> | undefined {
  const [response, setResponse] = useState<TypedResponse<T>>()
  const inFlight = useRef<AbortController>(undefined)
  const typeAhead = useTypeAhead<string>((requestedPath) => {
    inFlight.current?.abort()
    const abort = new AbortController()
    inFlight.current = abort
    const finish = (next: TypedResponse<T> | undefined) => {
      if (abort.signal.aborted) return
      setResponse(next)
      typeAhead.complete()
    }
    getJson<T>(requestedPath, abort.signal).then(
      (body) => finish({ path: requestedPath, body }),
      () => finish(undefined),
    )
  })
  useEffect(() => {
    if (path !== undefined) return typeAhead.offer(path)
    typeAhead.cancel()
    inFlight.current?.abort()
    typeAhead.complete()
    setResponse(undefined)
  }, [path, typeAhead])
  useEffect(() => () => inFlight.current?.abort(), [])
  return response
}
