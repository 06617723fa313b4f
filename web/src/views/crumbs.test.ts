import { expect, it } from 'vitest'
import { crumbsOf } from './crumbs'

const texts = (path: string, search = '') => crumbsOf(path, search).map(({ page, text }) => page ?? text)

it.each([
  ['/', '', []],
  ['/search', '', ['search']],
  ['/search', '?q=kind%3Apod', ['search', 'kind:pod']],
  ['/fleet', '', ['fleet']],
  ['/fleet/nodes', '', ['fleet', 'nodes']],
  ['/cluster/member1', '', ['fleet', 'member1']],
  ['/steer/quotas', '', ['steering', 'quotas']],
  ['/plan', '?new=OverridePolicy', ['steering', 'plan']],
  ['/policy', '?kind=PropagationPolicy&namespace=shop&name=web', ['steering', 'PropagationPolicy shop/web']],
  ['/saved', '', ['savedSearches']],
  ['/who-can', '?resource=secrets', ['whoCan']],
  ['/object', '?cluster=m1&apiVersion=v1&resource=pods&namespace=shop&name=web-0', ['m1', 'shop', 'pods', 'web-0']],
  ['/object', '?cluster=m1&apiVersion=v1&resource=nodes&name=n1', ['m1', 'nodes', 'n1']],
  ['/nosuchpage', '', []],
] as const)('%s%s is at %j', (path, search, wanted) => expect(texts(path, search)).toEqual(wanted))

it('parts of an object lead to the objects that share them', () => {
  expect(crumbsOf('/object', '?cluster=%40control-plane&apiVersion=apps%2Fv1&resource=deployments&namespace=shop&name=web').map(({ href }) => href)).toEqual([
    '/search?q=cluster%3A%40control-plane',
    '/search?q=cluster%3A%40control-plane+ns%3Ashop',
    '/search?q=kind%3Adeployments+cluster%3A%40control-plane+ns%3Ashop',
    undefined,
  ])
})
