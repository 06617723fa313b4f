import { expect, it } from 'vitest'
import { addPageCommands, pageCommands } from './pageCommands'

it('commands are offered until they are removed', () => {
  const logs = { text: 'Logs', about: 'Pod web-0', href: '/object?tab=logs' }
  const scale = { text: 'Scale', about: 'Deployment web', href: '/object?do=scale' }
  const removeLogs = addPageCommands([logs])
  const removeScale = addPageCommands([scale])
  expect(pageCommands()).toEqual([logs, scale])
  removeLogs()
  expect(pageCommands()).toEqual([scale])
  removeScale()
  expect(pageCommands()).toEqual([])
})
