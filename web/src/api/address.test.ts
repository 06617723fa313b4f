import { expect, test } from 'vitest'
import { readAddress, writeAddress } from './address'

test.each(['"no gear oil left"', '80', '1e3', 'true', 'null', '[1]', '{}', 'a+b & c=d', '-restarts:>5 ~ä', ''])('%s stays as it is', (q) => {
  expect(readAddress(writeAddress({ q }))).toEqual({ q })
  expect(readAddress(`?q=${encodeURIComponent(q)}`)).toEqual({ q })
})

test('what is not given is not written', () => {
  expect(writeAddress({ namespace: undefined, name: 'a' })).toBe('?name=a')
  expect(writeAddress({ namespace: undefined })).toBe('')
})
