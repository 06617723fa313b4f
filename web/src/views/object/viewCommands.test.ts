import { expect, it } from 'vitest'
import { allowedActions, viewCommands } from './viewCommands'

const web = { cluster: 'm1', apiVersion: 'apps/v1', resource: 'deployments', namespace: 'shop', name: 'web' }

it.each([
  [['overview', 'topology', 'drift', 'yaml', 'logs'], 'overview', ['topology', 'drift', 'yaml', 'logs', 'access']],
  [['overview', 'yaml'], 'yaml', ['overview', 'access']],
] as const)('of an object with the tabs %j on %s are %j', (tabs, shown, names) => expect(viewCommands(web, tabs, shown).map(({ name }) => name)).toEqual(names))

it('commands lead to the views of the object', () => {
  const addresses = Object.fromEntries(viewCommands(web, ['overview', 'logs'], 'overview').map(({ name, href }) => [name, href]))
  expect(addresses.logs).toBe('/object?cluster=m1&apiVersion=apps%2Fv1&resource=deployments&namespace=shop&name=web&tab=logs')
  expect(addresses.access).toMatch(/^\/who-can\?/)
})

it.each([
  ['deployments', 'apps/v1', {}, ['edit', 'scale', 'restart']],
  ['deployments', 'apps/v1', { mayEdit: false }, ['scale', 'restart']],
  ['deployments', 'apps/v1', { mayScale: false }, ['edit', 'restart']],
  ['deployments', 'apps/v1', { mayPatch: false }, ['edit', 'scale']],
  ['configmaps', 'v1', {}, ['edit']],
  ['configmaps', 'v1', { mayEdit: false }, []],
])('the actions on %s of %s with the permissions %j are %j', (resource, apiVersion, denied, names) => {
  expect(allowedActions({ resource, apiVersion }, { mayEdit: true, mayScale: true, mayPatch: true, ...denied })).toEqual(names)
})
