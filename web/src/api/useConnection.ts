import { useEffect, useRef, useSyncExternalStore } from 'react'
import { isServerReachable } from './client'
import { Connection, UNREACHABLE_EVENT } from './connection'

const connection = new Connection(isServerReachable)

/** Checks the connection when the server does not respond to a request, and when the browser goes offline or online. */
export function startConnection(): void {
  window.addEventListener(UNREACHABLE_EVENT, () => connection.startChecking())
  window.addEventListener('offline', () => connection.startChecking())
  window.addEventListener('online', () => connection.checkNow())
}

/** True while the server does not respond. */
export function useIsConnectionLost(): boolean {
  return useSyncExternalStore(connection.subscribe, () => connection.isLost)
}

/** Calls `callback` each time a lost connection is restored. */
export function useOnConnectionRestored(callback: () => void): void {
  const latest = useRef(callback)
  useEffect(() => {
    latest.current = callback
  })
  useEffect(() => connection.onRestored(() => latest.current()), [])
}
