import { expect, it } from 'vitest'
import { breadcrumbsOf } from './breadcrumbsOf'

const texts = (path: string, search = '') => breadcrumbsOf(path, search).map(({ page, text }) => page ?? text)

it.each([
  ['/', '', []],
  ['/search', '', ['search']],
  ['/search', '?q=kind%3Apod', ['search', 'kind:pod']],
  ['/fleet', '', ['fleet']],
  ['/fleet/nodes', '', ['fleet', 'nodes']],
  ['/cluster/member1', '', ['fleet', 'member1']],
  ['/steer/quotas', '', ['propagation', 'quotas']],
  ['/plan', '?new=OverridePolicy', ['propagation', 'plan']],
  ['/policy', '?kind=PropagationPolicy&namespace=shop&name=web', ['propagation', 'PropagationPolicy shop/web']],
  ['/saved', '', ['savedSearches']],
  ['/who-can', '?resource=secrets', ['whoCan']],
  ['/object', '?cluster=m1&apiVersion=v1&resource=pods&namespace=shop&name=web-0', ['m1', 'shop', 'pods', 'web-0']],
  ['/object', '?cluster=m1&apiVersion=v1&resource=nodes&name=n1', ['m1', 'nodes', 'n1']],
  ['/nosuchpage', '', []],
] as const)('%s%s has the breadcrumbs %j', (path, search, expected) => expect(texts(path, search)).toEqual(expected))

it('breadcrumbs of an object link to searches for its cluster, namespace and kind', () => {
  expect(breadcrumbsOf('/object', '?cluster=%40control-plane&apiVersion=apps%2Fv1&resource=deployments&namespace=shop&name=web').map(({ href }) => href)).toEqual([
    '/search?q=cluster%3A%40control-plane',
    '/search?q=cluster%3A%40control-plane+ns%3Ashop',
    '/search?q=kind%3Adeployments.apps+cluster%3A%40control-plane+ns%3Ashop',
    undefined,
  ])
})
