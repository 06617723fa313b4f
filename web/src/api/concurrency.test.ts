import { expect, test } from 'vitest'
import { mapConcurrently } from './concurrency'

test('calls are limited, and results are in the order of the items', async () => {
  const finish: (() => void)[] = []
  let running = 0
  let maxRunning = 0
  const call = async (item: number) => {
    maxRunning = Math.max(maxRunning, ++running)
    await new Promise<void>((resolve) => finish.push(resolve))
    running--
    return item * 10
  }
  const results = mapConcurrently([1, 2, 3, 4, 5], 2, call)
  // The newest call ends first.
  for (let ended = 0; ended < 5; ended++) {
    finish.pop()?.()
    await new Promise<void>((resolve) => setTimeout(resolve))
  }
  expect(await results).toEqual([10, 20, 30, 40, 50])
  expect(maxRunning).toBe(2)
})

test('no call begins after a failure', async () => {
  const called: number[] = []
  const call = (item: number) => {
    called.push(item)
    return item === 1 ? Promise.reject(new Error('refused')) : Promise.resolve(item)
  }
  await expect(mapConcurrently([1, 2, 3, 4], 2, call)).rejects.toThrow('refused')
  expect(called).toEqual([1, 2])
  expect(await mapConcurrently([], 2, call)).toEqual([])
})
