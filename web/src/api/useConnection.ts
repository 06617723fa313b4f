import { useEffect, useRef, useSyncExternalStore } from 'react'
import { isServerReachable } from './client'
import { Connection, UNREACHABLE_EVENT } from './connection'

const connection = new Connection(isServerReachable)

/** Checks the connection when a request fails and when the browser's network state changes. */
export function startConnection(): void {
  window.addEventListener(UNREACHABLE_EVENT, () => connection.startChecking())
  window.addEventListener('offline', () => connection.startChecking())
  window.addEventListener('online', () => connection.checkNow())
}

/** True while the server does not respond. */
export function useIsConnectionLost(): boolean {
  return useSyncExternalStore(connection.subscribe, () => connection.isLost)
}

/** Calls back each time a lost connection is restored. */
export function useOnConnectionRestored(on: () => void): void {
  const latest = useRef(on)
  useEffect(() => {
    latest.current = on
  })
  useEffect(() => connection.onRestored(() => latest.current()), [])
}
