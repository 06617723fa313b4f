import { useSyncExternalStore } from 'react'

const NARROW = '(max-width: 700px)'

function subscribe(reader: () => void): () => void {
  const query = window.matchMedia(NARROW)
  query.addEventListener('change', reader)
  return () => query.removeEventListener('change', reader)
}

/** True on the screen of a phone. */
export function useIsNarrowScreen(): boolean {
  return useSyncExternalStore(subscribe, () => window.matchMedia(NARROW).matches)
}
