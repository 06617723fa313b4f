// Selects the tabs of an object. Has no side effects.
import { TABS, type Tab } from '../../api/address'
import { isPlacementTab, type PlacementTab } from './placement'

interface ObjectFeatures {
  /** Propagation tabs. */
  placement: readonly PlacementTab[]
  /** True if policies move the object, so that it has a journal. */
  journal: boolean
  /** True if pods of the object are known. */
  logs: boolean
  /** True for a pod. */
  terminal: boolean
}

/** The tabs that apply to an object, in their usual order. */
export function tabsOf({ placement, journal, logs, terminal }: ObjectFeatures): Tab[] {
  const optional: Partial<Record<Tab, boolean>> = { journal, logs, terminal }
  return TABS.filter((tab) => (isPlacementTab(tab) ? placement.includes(tab) : (optional[tab] ?? true)))
}

/** The tab of the address, or the overview if the object does not have that tab. Until the object is loaded, tabs that depend on it are kept. */
export function shownTab(tab: Tab, tabs: readonly Tab[], loaded: boolean): Tab {
  return tabs.includes(tab) || (!loaded && (tab === 'journal' || isPlacementTab(tab))) ? tab : 'overview'
}
