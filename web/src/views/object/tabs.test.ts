import { expect, it } from 'vitest'
import { PLACEMENT_TABS } from './placement'
import { shownTab, tabsOf } from './tabs'

const TEMPLATE = tabsOf({ placement: PLACEMENT_TABS, journal: true, logs: true, terminal: false })
const CONFIG_MAP = tabsOf({ placement: [], journal: false, logs: false, terminal: false })

it('an object has the tabs that apply to it', () => {
  expect(TEMPLATE).toEqual(['overview', 'placement', 'topology', 'drift', 'yaml', 'events', 'related', 'history', 'journal', 'logs'])
  expect(CONFIG_MAP).toEqual(['overview', 'yaml', 'events', 'related', 'history'])
  expect(tabsOf({ placement: [], journal: false, logs: true, terminal: true }).at(-1)).toBe('terminal')
})

it.each([
  ['terminal', TEMPLATE, true, 'overview'],
  ['terminal', TEMPLATE, false, 'overview'],
  ['logs', CONFIG_MAP, true, 'overview'],
  ['logs', TEMPLATE, true, 'logs'],
  ['journal', CONFIG_MAP, false, 'journal'],
  ['journal', CONFIG_MAP, true, 'overview'],
  ['drift', CONFIG_MAP, false, 'drift'],
  ['drift', CONFIG_MAP, true, 'overview'],
  ['drift', TEMPLATE, true, 'drift'],
] as const)('for the tab %s and the tabs %j, loaded: %s, %s is shown', (requested, tabs, loaded, shown) => {
  expect(shownTab(requested, tabs, loaded)).toBe(shown)
})
