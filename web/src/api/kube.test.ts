import { afterEach, expect, test, vi } from 'vitest'
import { discoverResource } from './kube'

afterEach(() => vi.unstubAllGlobals())

/** Responses to consecutive requests, and the paths that were requested. */
function stubResponses(...responses: Response[]): string[] {
  const paths: string[] = []
  vi.stubGlobal('fetch', (path: string) => {
    paths.push(path)
    return Promise.resolve(responses.shift() ?? new Response('', { status: 500 }))
  })
  return paths
}

const APPS = JSON.stringify({ resources: [{ name: 'deployments/scale', kind: 'Deployment', namespaced: true }, { name: 'deployments', kind: 'Deployment', namespaced: true }] })

test('a group version is discovered once, and again after a failed request', async () => {
  const paths = stubResponses(new Response('broken', { status: 500 }), new Response(APPS))
  await expect(discoverResource('apps/v1', 'Deployment')).rejects.toThrow('broken')
  expect(await discoverResource('apps/v1', 'Deployment')).toMatchObject({ name: 'deployments' })
  expect(await discoverResource('apps/v1', 'Widget')).toBeUndefined()
  expect(paths).toEqual(['/apis/apps/v1', '/apis/apps/v1'])
})

test('a group version that is not served has no resources', async () => {
  stubResponses(new Response('{}', { status: 404 }))
  expect(await discoverResource('example.com/v1', 'Widget')).toBeUndefined()
})
