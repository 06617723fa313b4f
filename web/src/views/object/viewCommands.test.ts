import { expect, it } from 'vitest'
import { viewCommands } from './viewCommands'

const web = { cluster: 'm1', apiVersion: 'apps/v1', resource: 'deployments', namespace: 'shop', name: 'web' }

it.each([
  [['overview', 'topology', 'drift', 'yaml', 'logs'], 'overview', ['topology', 'drift', 'yaml', 'logs', 'edit', 'access']],
  [['overview', 'yaml'], 'yaml', ['overview', 'edit', 'access']],
] as const)('of an object with the tabs %j on %s are %j', (tabs, shown, names) => expect(viewCommands(web, tabs, shown).map(({ name }) => name)).toEqual(names))

it('commands lead to the views of the object', () => {
  const addresses = Object.fromEntries(viewCommands(web, ['overview', 'logs'], 'overview').map(({ name, href }) => [name, href]))
  expect(addresses.logs).toBe('/object?cluster=m1&apiVersion=apps%2Fv1&resource=deployments&namespace=shop&name=web&tab=logs')
  expect(addresses.edit).toBe('/object?cluster=m1&apiVersion=apps%2Fv1&resource=deployments&namespace=shop&name=web&tab=yaml&edit=true')
  expect(addresses.access).toMatch(/^\/who-can\?/)
})
