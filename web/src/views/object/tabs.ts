// Tabs of an object.
import { TABS, type Tab } from '../../api/address'
import { isPlacementTab, type PlacementTab } from './placement'

interface Has {
  /** Tabs of its propagation. */
  placement: readonly PlacementTab[]
  /** The object is moved by policies, so it has a journal. */
  journal: boolean
  /** Its pods are known. */
  logs: boolean
  /** It is a pod. */
  terminal: boolean
}

/** The tabs that apply to an object, in their usual order. */
export function tabsOf({ placement, journal, logs, terminal }: Has): Tab[] {
  const optional: Partial<Record<Tab, boolean>> = { journal, logs, terminal }
  return TABS.filter((tab) => (isPlacementTab(tab) ? placement.includes(tab) : (optional[tab] ?? true)))
}

/** The tab of an address; the overview if the object does not have it. Until the object is `loaded`, it is not known what it has. */
export function tabShown(tab: Tab, tabs: readonly Tab[], loaded: boolean): Tab {
  return tabs.includes(tab) || (!loaded && (tab === 'journal' || isPlacementTab(tab))) ? tab : 'overview'
}
