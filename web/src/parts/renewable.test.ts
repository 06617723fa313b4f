import { expect, it } from 'vitest'
import { renewable } from './renewable'

it('a value is replaced only after it has failed', () => {
  const failures: (() => void)[] = []
  const part = renewable((onFailure) => failures.push(onFailure))
  part.renew()
  expect(part.current()).toBe(1)
  failures[0]?.()
  expect(part.current()).toBe(1)
  part.renew()
  part.renew()
  expect(part.current()).toBe(2)
  failures[1]?.()
  part.renew()
  expect(part.current()).toBe(3)
})
