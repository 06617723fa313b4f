import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { flash, SHOWN_FOR } from './flash'

beforeEach(() => void vi.useFakeTimers())
afterEach(() => void vi.useRealTimers())

it('a confirmation disappears after two seconds', () => {
  const values: (string | undefined)[] = []
  flash<string>((value) => values.push(value)).show('a')
  vi.advanceTimersByTime(SHOWN_FOR - 1)
  expect(values).toEqual(['a'])
  vi.advanceTimersByTime(1)
  expect(values).toEqual(['a', undefined])
  expect(SHOWN_FOR).toBe(2_000)
})

it('a second confirmation has its own two seconds', () => {
  let shown: string | undefined
  const { show, clear } = flash<string>((value) => (shown = value))
  show('a')
  vi.advanceTimersByTime(1_500)
  show('b')
  vi.advanceTimersByTime(1_500)
  expect(shown).toBe('b')
  clear()
  expect(shown).toBeUndefined()
  vi.advanceTimersByTime(5_000)
  expect(vi.getTimerCount()).toBe(0)
})
