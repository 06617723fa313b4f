// Addresses of views. Parameters are plain text: a quoted query, or one that looks like a number, is not parsed as JSON.
import type { ObjectRef } from './client'

/** Parameters of a query string. */
export function readAddress(search: string): Record<string, string> {
  return Object.fromEntries(new URLSearchParams(search))
}

/** A query string with these parameters, without undefined ones; empty if there are none. */
export function writeAddress(search: Record<string, unknown>): string {
  const defined = Object.entries(search).filter(([, value]) => value !== undefined)
  const text = new URLSearchParams(defined.map(([name, value]) => [name, String(value)])).toString()
  return text === '' ? '' : `?${text}`
}

/** Parameters of the search page. */
export interface SearchView {
  q: string
  /** Columns by name; absent: the user's preference. */
  columns?: string[] | undefined
  /** The table has all printed columns of its kind; absent: the user's preference, or no if there are `columns`. */
  wide?: boolean | undefined
  live?: boolean | undefined
  /** The selected result is shown next to the list. */
  peek?: boolean | undefined
}

export function readSearch(search: string): SearchView {
  const { q = '', columns, wide, live, peek } = readAddress(search)
  return { q, columns: columns ? columns.split(',') : undefined, wide: wide === 'true' || undefined, live: live === 'true', peek: peek === 'true' || undefined }
}

/** The query that an address shows; undefined if it is not that of the search page. */
export function queryAt({ pathname, search }: Pick<Location, 'pathname' | 'search'>): string | undefined {
  return pathname === '/search' ? readSearch(search).q : undefined
}

export function searchAddress({ q, columns, wide, live, peek }: SearchView): string {
  return `/search${writeAddress({ q, columns: columns?.join(','), wide: wide || undefined, live: live || undefined, peek: peek || undefined })}`
}

/** Tabs of an object. */
export const TABS = ['overview', 'placement', 'topology', 'drift', 'yaml', 'events', 'related', 'history', 'journal', 'logs', 'terminal'] as const
export type Tab = (typeof TABS)[number]

/** The object page: an object and the tab that is shown. */
export interface ObjectView extends ObjectRef {
  tab: Tab
}

export function readObject(search: string): ObjectView {
  const { cluster = '', apiVersion = '', resource = '', namespace, name = '', tab } = readAddress(search)
  return { cluster, apiVersion, resource, namespace: namespace || undefined, name, tab: TABS.find((candidate) => candidate === tab) ?? 'overview' }
}

/** `view` contains the parameters of the tab itself. */
export function objectAddress({ cluster, apiVersion, resource, namespace, name }: ObjectRef, tab?: Tab, view?: Record<string, unknown>): string {
  return `/object${writeAddress({ cluster, apiVersion, resource, namespace, name, tab, ...view })}`
}

export function clusterAddress(name: string): string {
  return `/cluster/${encodeURIComponent(name)}`
}
