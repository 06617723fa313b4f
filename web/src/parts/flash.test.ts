import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { createFlash, FLASH_MS } from './flash'

beforeEach(() => void vi.useFakeTimers())
afterEach(() => void vi.useRealTimers())

it('a confirmation disappears after two seconds', () => {
  const values: (string | undefined)[] = []
  createFlash<string>((value) => values.push(value)).show('a')
  vi.advanceTimersByTime(FLASH_MS - 1)
  expect(values).toEqual(['a'])
  vi.advanceTimersByTime(1)
  expect(values).toEqual(['a', undefined])
  expect(FLASH_MS).toBe(2_000)
})

it('a new confirmation restarts the two seconds, and clear removes it and its timer', () => {
  let shown: string | undefined
  const { show, clear } = createFlash<string>((value) => (shown = value))
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
