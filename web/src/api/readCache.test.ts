import { expect, test } from 'vitest'
import { ReadCache } from './readCache'

function countedCache(fails: () => boolean) {
  const clock = { now: 0 }
  let reads = 0
  const cache = new ReadCache((key) => (fails() ? Promise.reject(new Error('no')) : Promise.resolve(`${key}${++reads}`)), 60_000, () => clock.now)
  return { cache, clock }
}

test('a value is reused until it is too old', async () => {
  const { cache, clock } = countedCache(() => false)
  expect([await cache.read('a'), await cache.read('a'), await cache.read('b')]).toEqual(['a1', 'a1', 'b2'])
  clock.now = 59_999
  expect(await cache.read('a')).toBe('a1')
  clock.now = 60_000
  expect(await cache.read('a')).toBe('a3')
})

test('a failed read is repeated', async () => {
  let fails = true
  const { cache } = countedCache(() => fails)
  await expect(cache.read('a')).rejects.toThrow('no')
  fails = false
  expect(await cache.read('a')).toBe('a1')
})

test('a value without a maximum age is read once', async () => {
  const clock = { now: 0 }
  let reads = 0
  const cache = new ReadCache(() => Promise.resolve(++reads), undefined, () => clock.now)
  expect(await cache.read('a')).toBe(1)
  clock.now = Number.MAX_SAFE_INTEGER
  expect(await cache.read('a')).toBe(1)
})
