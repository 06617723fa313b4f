// Preferences stored in this browser: theme, language, density, columns, recent queries, favourites, acknowledged problems. If the browser stores
// nothing, they last until the page is closed.
import { useSyncExternalStore } from 'react'

export type Theme = 'auto' | 'light' | 'dark'
export type Locale = 'en' | 'zh-CN'
export type Density = 'compact' | 'comfortable'
export type Rail = 'wide' | 'narrow'

/** A problem that a user has acknowledged, with the number of objects that it affected. */
export interface Acknowledgement {
  /** Time in RFC 3339. */
  at: string
  /** Time of the numbers in RFC 3339: `at`, or later if they have become smaller. */
  countedAt: string
  total: number
  /** Objects by cluster, of the most affected clusters. */
  clusters: Record<string, number>
}

/** Acknowledged problems by name. */
export type Acknowledgements = Readonly<Record<string, Acknowledgement>>

export interface Prefs {
  theme: Theme
  /** Absent: the browser's language. */
  locale?: Locale | undefined
  density: Density
  /** Width of the navigation. */
  rail: Rail
  /** Columns of results with several kinds. */
  columns?: string[] | undefined
  /** Columns of results of one kind, by kind. */
  columnsOf: Record<string, string[]>
  /** Kinds whose results have all printed columns, as `kubectl -o wide`. */
  wideKinds: string[]
  /** Shortcut keys that the user has chosen, by the default key. */
  keys: Record<string, string>
  /** Recent queries by user, newest first. */
  asked: Record<string, string[]>
  /** Queries that stay at the top of the recent ones, by user, newest star first. */
  starred: Record<string, string[]>
  /** Names of clusters that are listed first. */
  favouriteClusters: string[]
  /** Acknowledged problems by user. */
  acknowledged: Record<string, Acknowledgements>
}

const STORAGE_KEY = 'crowsnest'
const MAX_RECENT_QUERIES = 50
const DEFAULT: Prefs = { theme: 'auto', density: 'compact', rail: 'wide', columnsOf: {}, wideKinds: [], keys: {}, asked: {}, starred: {}, favouriteClusters: [], acknowledged: {} }

function load(): Prefs {
  try {
    return { ...DEFAULT, ...(JSON.parse(localStorage.getItem(STORAGE_KEY) ?? '{}') as Partial<Prefs>) }
  } catch {
    return DEFAULT
  }
}

let prefs = load()
const listeners = new Set<() => void>()

export function currentPrefs(): Prefs {
  return prefs
}

export function setPrefs(changed: Partial<Prefs>): void {
  prefs = { ...prefs, ...changed }
  try {
    localStorage.setItem(STORAGE_KEY, JSON.stringify(prefs))
  } catch {
    // Kept in memory until the page is closed.
  }
  applyAppearance()
  listeners.forEach((listener) => listener())
}

export function usePrefs(): Prefs {
  return useSyncExternalStore(subscribe, currentPrefs)
}

function subscribe(listener: () => void): () => void {
  listeners.add(listener)
  return () => listeners.delete(listener)
}

function applyAppearance(): void {
  const { dataset } = document.documentElement
  dataset.theme = prefs.theme
  dataset.density = prefs.density
}

/** Applies the preferences to the page, also when another tab changes them. */
export function startPrefs(): void {
  applyAppearance()
  window.addEventListener('storage', (event) => {
    if (event.key !== STORAGE_KEY) return
    prefs = load()
    applyAppearance()
    listeners.forEach((listener) => listener())
  })
}

/** Adds a query to the front of the recent queries, or moves it there. */
export function withRecentQuery(before: string[], q: string): string[] {
  const query = q.trim()
  return query === '' ? before : [query, ...before.filter((other) => other !== query)].slice(0, MAX_RECENT_QUERIES)
}

export function addRecentQuery(user: string, q: string): void {
  setPrefs({ asked: { ...prefs.asked, [user]: withRecentQuery(prefs.asked[user] ?? [], q) } })
}

/** The starred queries of a user, then the other recent ones, newest first. */
export function recentQueriesOf({ asked, starred }: Pick<Prefs, 'asked' | 'starred'>, user: string): string[] {
  return [...new Set([...(starred[user] ?? []), ...(asked[user] ?? [])])]
}

/** Adds a value to the front of a list, or removes it. */
export function toggled(values: readonly string[], value: string): string[] {
  return values.includes(value) ? values.filter((other) => other !== value) : [value, ...values]
}

export function toggleStar(user: string, q: string): void {
  setPrefs({ starred: { ...prefs.starred, [user]: toggled(prefs.starred[user] ?? [], q) } })
}

/** Favourites first; both parts keep their order. */
export function favouritesFirst<T>(values: readonly T[], favourites: readonly string[], nameOf: (value: T) => string): T[] {
  const isFavourite = (value: T) => favourites.includes(nameOf(value))
  return [...values.filter(isFavourite), ...values.filter((value) => !isFavourite(value))]
}

/** Gives results of a kind all printed columns, or removes them. */
export function setWide(kind: string, isWide: boolean): void {
  const others = prefs.wideKinds.filter((other) => other !== kind)
  setPrefs({ wideKinds: isWide ? [...others, kind] : others })
}

export function toggleFavouriteCluster(name: string): void {
  setPrefs({ favouriteClusters: toggled(prefs.favouriteClusters, name) })
}

export function setAcknowledgements(user: string, acknowledgements: Acknowledgements): void {
  setPrefs({ acknowledged: { ...prefs.acknowledged, [user]: acknowledgements } })
}

/** Clears the recent queries of a user, except for the starred ones. */
export function clearRecentQueries(user: string): void {
  const { [user]: _cleared, ...remaining } = prefs.asked
  setPrefs({ asked: remaining })
}
