import { expect, it } from 'vitest'
import { en } from '../text/en'
import { skippedText } from './skipped'

it('the age of outdated data follows the reason', () => {
  expect(skippedText({ reason: 'not reachable', ageSeconds: 180 }, en)).toBe('not reachable, as of 3m ago')
  expect(skippedText({ reason: 'not reachable' }, en)).toBe('not reachable')
})
