import { expect, test } from 'vitest'
import { RequestSlot } from './requestSlot'

test('requests follow each other', () => {
  const slot = new RequestSlot()
  const first = slot.take()
  expect(slot.take()).toBeUndefined()
  expect(first?.release()).toBe(true)
  expect(slot.take()?.signal.aborted).toBe(false)
})

test('the end of a cancelled request does not free the slot of its successor', () => {
  const slot = new RequestSlot()
  const first = slot.take()
  slot.cancel()
  const second = slot.take()
  expect(first?.signal.aborted).toBe(true)
  expect(first?.release()).toBe(false)
  expect(slot.take()).toBeUndefined()
  expect(second?.release()).toBe(true)
})
