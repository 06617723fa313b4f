import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { onNavigation } from './navigation'

const page = Object.assign(new EventTarget(), { location: { pathname: '/', search: '' } })
let queries: (string | undefined)[]
let remove: () => void

function go(event: string, pathname: string, search = ''): void {
  page.location = { pathname, search }
  page.dispatchEvent(new Event(event))
}

beforeEach(() => {
  vi.stubGlobal('window', page)
  queries = []
  remove = onNavigation((query) => queries.push(query))
})
afterEach(() => {
  remove()
  vi.unstubAllGlobals()
})

it.each<[string, string, string, (string | undefined)[]]>([
  ['pushState', '/search', '?q=kind%3Apod', ['kind:pod']],
  ['pushState', '/search', '', ['']],
  ['popstate', '/search', '?q=a&columns=node', ['a']],
  ['pushState', '/', '', [undefined]],
  ['popstate', '/fleet', '?q=a', [undefined]],
  ['replaceState', '/search', '?q=a', []],
])('%s to %s%s', (event, pathname, search, expected) => {
  go(event, pathname, search)
  expect(queries).toEqual(expected)
})

it('a navigation to the current address is reported as well', () => {
  go('pushState', '/')
  go('pushState', '/')
  expect(queries).toEqual([undefined, undefined])
})

it('a removed listener is not called', () => {
  remove()
  go('pushState', '/')
  expect(queries).toEqual([])
})
