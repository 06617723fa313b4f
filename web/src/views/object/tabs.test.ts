import { expect, it } from 'vitest'
import { tabShown, tabsOf } from './tabs'

const DEPLOYMENT = tabsOf({ journal: true, logs: true, terminal: false })
const CONFIG_MAP = tabsOf({ journal: false, logs: false, terminal: false })

it('an object has the tabs that apply to it', () => {
  expect(DEPLOYMENT).toEqual(['overview', 'yaml', 'events', 'related', 'history', 'journal', 'logs'])
  expect(tabsOf({ journal: false, logs: true, terminal: true }).at(-1)).toBe('terminal')
})

it('the overview is shown for a tab that the object does not have', () => {
  expect(tabShown('terminal', DEPLOYMENT, true)).toBe('overview')
  expect(tabShown('terminal', DEPLOYMENT, false)).toBe('overview')
  expect(tabShown('logs', CONFIG_MAP, true)).toBe('overview')
  expect(tabShown('logs', DEPLOYMENT, true)).toBe('logs')
  expect(tabShown('journal', CONFIG_MAP, false)).toBe('journal')
  expect(tabShown('journal', CONFIG_MAP, true)).toBe('overview')
})
