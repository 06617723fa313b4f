import { expect, it } from 'vitest'
import { parse, print } from './yaml'

it.each([
  ['yes', 'text: "yes"\n'],
  ['012', 'text: "012"\n'],
  ['2026-01-01T00:00:00Z', 'text: "2026-01-01T00:00:00Z"\n'],
  ['a\nb\n', 'text: |\n  a\n  b\n'],
  ['x'.repeat(200), `text: ${'x'.repeat(200)}\n`],
])('%j is text for the cluster, too', (text, expected) => {
  expect(print({ text })).toBe(expected)
  expect(parse(expected).value).toEqual({ text })
})

it('is parsed as by the API server', () => {
  expect(parse('on: yes\ntime: 2026-01-01T00:00:00Z\nmode: 0644\nitems:\n- a\n').value).toMatchObject({ time: '2026-01-01T00:00:00Z', mode: 420, items: ['a'] })
})

it('reports the position of an error', () => {
  const { value, problems } = parse('a: b\n  c: d\n')
  expect(value).toBeUndefined()
  expect(problems[0]).toMatchObject({ from: expect.any(Number), message: expect.stringMatching(/\(\d+:\d+\)$/) })
  expect(parse('a: 1\na: 2\n').problems).toHaveLength(1)
})

it('keeps integers beyond 2^53', () => {
  const text = 'seed: 9007199254740993\nratio: 0.30000000000000004\nversion: "1.10"\nmode: "0755"\nfew: 3\n'
  const { value } = parse(text)
  expect(value).toEqual({ seed: 9007199254740993n, ratio: 0.30000000000000004, version: '1.10', mode: '0755', few: 3 })
  expect(print(value)).toBe(text)
})
