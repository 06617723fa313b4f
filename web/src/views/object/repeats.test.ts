import { expect, it } from 'vitest'
import { LogBuffer, type LogSource } from './logBuffer'
import { countRepeats, findShownLine } from './repeats'

const [web, api]: LogSource[] = ['web', 'api'].map((pod) => ({ cluster: 'east', namespace: 'shop', pod, container: 'main' })) as [LogSource, LogSource]

function bufferOf(...lines: [LogSource, string][]): LogBuffer {
  const buffer = new LogBuffer()
  lines.forEach(([source, text], nth) => buffer.push({ time: `2026-01-01T00:00:0${nth}Z`, text, truncated: false, source }))
  return buffer
}

it.each([
  ['no lines', bufferOf(), []],
  ['different lines', bufferOf([web!, 'a'], [web!, 'b'], [web!, 'a']), [1, 1, 1]],
  ['repeated lines', bufferOf([web!, 'a'], [web!, 'a'], [web!, 'a'], [web!, 'b'], [web!, 'b']), [3, 0, 0, 2, 0]],
  ['the same text of two pods', bufferOf([web!, 'a'], [api!, 'a']), [1, 1]],
])('counts repeats in %s', (_, buffer, expected) => expect(countRepeats(buffer)).toEqual(expected))

it.each([[0, 0], [2, 0], [3, 3], [4, 3]])('line %d is shown as line %d', (nth, expected) => expect(findShownLine([3, 0, 0, 2, 0], nth)).toBe(expected))
