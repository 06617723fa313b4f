import { expect, test } from 'vitest'
import { objectAddress, readAddress, readObject, readSearch, searchAddress, writeAddress } from './address'

test.each(['"no gear oil left"', '80', '1e3', 'true', 'null', '[1]', '{}', 'a+b & c=d', '-restarts:>5 ~ä', ''])('the parameter %s is not changed by its address', (q) => {
  expect(readAddress(writeAddress({ q }))).toEqual({ q })
  expect(readAddress(`?q=${encodeURIComponent(q)}`)).toEqual({ q })
})

test('absent parameters are omitted', () => {
  expect(writeAddress({ namespace: undefined, name: 'a' })).toBe('?name=a')
  expect(writeAddress({ namespace: undefined })).toBe('')
})

test.each([
  { q: 'kind:pod', columns: undefined, live: false },
  { q: '', columns: ['name', 'cluster'], live: true },
  { q: 'kind:pod', columns: undefined, wide: true, live: false },
])('a search view round-trips through its address: %j', (view) => {
  const address = searchAddress(view)
  expect(readSearch(address.slice(address.indexOf('?')))).toEqual(view)
})

test('an object round-trips through its address', () => {
  const object = { cluster: 'member1', apiVersion: 'apps/v1', resource: 'deployments', namespace: 'shop', name: 'web' }
  expect(readObject(objectAddress(object, 'events').slice('/object'.length))).toEqual({ ...object, tab: 'events' })
  expect(readObject('?name=a&tab=nothing').tab).toBe('overview')
  expect(objectAddress(object, 'history', { with: 'member2', from: undefined })).toMatch(/&tab=history&with=member2$/)
})
