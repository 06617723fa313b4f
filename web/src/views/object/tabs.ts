// Tabs of an object.
import type { Tab } from '../../api/address'

interface Has {
  /** The object is moved by policies, so it has a journal. */
  journal: boolean
  /** Its pods are known. */
  logs: boolean
  /** It is a pod. */
  terminal: boolean
}

export function tabsOf({ journal, logs, terminal }: Has): Tab[] {
  return ['overview', 'yaml', 'events', 'related', 'history', ...(journal ? (['journal'] as const) : []), ...(logs ? (['logs'] as const) : []), ...(terminal ? (['terminal'] as const) : [])]
}

/** The tab of an address; the overview if the object does not have it. Until the object is `loaded`, it may still have a journal. */
export function tabShown(tab: Tab, tabs: readonly Tab[], loaded: boolean): Tab {
  return tabs.includes(tab) || (tab === 'journal' && !loaded) ? tab : 'overview'
}
