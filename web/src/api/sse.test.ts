import { describe, expect, it } from 'vitest'
import { EventParser } from './sse'

describe('EventParser', () => {
  const cases: [string, string[], { event: string; data: string }[]][] = [
    ['one event', ['event: done\ndata: {"a":1}\n\n'], [{ event: 'done', data: '{"a":1}' }]],
    ['cut in the middle', ['event: mat', 'ches\ndata: []\n', '\nevent: x'], [{ event: 'matches', data: '[]' }]],
    ['comments and blanks', [': ping\n\ndata: 1\ndata: 2\n\n'], [{ event: 'message', data: '1\n2' }]],
  ]
  it.each(cases)('%s', (_name, chunks, expected) => {
    const parser = new EventParser()
    expect(chunks.flatMap((chunk) => parser.push(chunk))).toEqual(expected)
  })
})
