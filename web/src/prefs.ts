// Preferences stored in this browser only: theme, language, density, columns, recent queries. All are optional, so a browser that
// stores nothing is not an error.
import { useSyncExternalStore } from 'react'

export type Theme = 'auto' | 'light' | 'dark'
export type Locale = 'en' | 'zh-CN'
export type Density = 'compact' | 'comfortable'
export type Rail = 'wide' | 'narrow'

export interface Prefs {
  theme: Theme
  /** Absent: the browser's. */
  locale?: Locale | undefined
  density: Density
  /** Width of the navigation. */
  rail: Rail
  /** Columns of results of several kinds. */
  columns?: string[] | undefined
  /** Columns of results of one kind, by kind. */
  columnsOf: Record<string, string[]>
  /** Queries by user, newest first. */
  asked: Record<string, string[]>
}

const KEY = 'crowsnest'
const MOST_ASKED = 50
const DEFAULT: Prefs = { theme: 'auto', density: 'compact', rail: 'wide', columnsOf: {}, asked: {} }

function load(): Prefs {
  try {
    return { ...DEFAULT, ...(JSON.parse(localStorage.getItem(KEY) ?? '{}') as Partial<Prefs>) }
  } catch {
    return DEFAULT
  }
}

let prefs = load()
const readers = new Set<() => void>()

export function currentPrefs(): Prefs {
  return prefs
}

export function setPrefs(changed: Partial<Prefs>): void {
  prefs = { ...prefs, ...changed }
  try {
    localStorage.setItem(KEY, JSON.stringify(prefs))
  } catch {
    // Kept in memory until the page is closed.
  }
  applyLook()
  readers.forEach((reader) => reader())
}

export function usePrefs(): Prefs {
  return useSyncExternalStore(subscribe, currentPrefs)
}

function subscribe(reader: () => void): () => void {
  readers.add(reader)
  return () => readers.delete(reader)
}

function applyLook(): void {
  const { dataset } = document.documentElement
  dataset.theme = prefs.theme
  dataset.density = prefs.density
}

/** Applies them to the page, also when another tab changes them. */
export function startPrefs(): void {
  applyLook()
  window.addEventListener('storage', (event) => {
    if (event.key !== KEY) return
    prefs = load()
    applyLook()
    readers.forEach((reader) => reader())
  })
}

/** Moves the query to the front, without duplicates. */
export function withAsked(before: string[], q: string): string[] {
  const query = q.trim()
  return query === '' ? before : [query, ...before.filter((other) => other !== query)].slice(0, MOST_ASKED)
}

export function noteAsked(user: string, q: string): void {
  setPrefs({ asked: { ...prefs.asked, [user]: withAsked(prefs.asked[user] ?? [], q) } })
}

export function forgetAsked(user: string): void {
  const { [user]: _gone, ...others } = prefs.asked
  setPrefs({ asked: others })
}
