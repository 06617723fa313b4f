import { useEffect, useRef, useSyncExternalStore } from 'react'
import { responds } from './client'
import { Connection, UNREACHABLE } from './connection'

const connection = new Connection(responds)

/** Starts to follow failed requests and the browser's own network state. */
export function startConnection(): void {
  window.addEventListener(UNREACHABLE, () => connection.suspect())
  window.addEventListener('offline', () => connection.suspect())
  window.addEventListener('online', () => connection.hurry())
}

/** True while the server does not respond. */
export function useLost(): boolean {
  return useSyncExternalStore(connection.subscribe, () => connection.lost)
}

/** Calls back each time a lost connection is restored. */
export function useRestored(on: () => void): void {
  const latest = useRef(on)
  useEffect(() => {
    latest.current = on
  })
  useEffect(() => connection.onRestored(() => latest.current()), [])
}
