// Navigations of the browser: new entries of its history, and Back and Forward.
import { queryAt } from './address'

/**
 * Events of navigations on the window. wouter dispatches `pushState`. `replaceState`, for example when the user chooses other columns, is not a
 * navigation.
 */
const EVENTS = ['pushState', 'popstate']

/**
 * Calls `listener` after each navigation, also after one to the current address, with the query of the new address; undefined for pages other
 * than the search page. Returns a function that removes the listener.
 */
export function onNavigation(listener: (query: string | undefined) => void): () => void {
  const handleEvent = () => listener(queryAt(window.location))
  EVENTS.forEach((event) => window.addEventListener(event, handleEvent))
  return () => EVENTS.forEach((event) => window.removeEventListener(event, handleEvent))
}
