import { expect, it } from 'vitest'
import { parseYaml, printYaml } from './yaml'

it.each([
  ['yes', 'text: "yes"\n'],
  ['012', 'text: "012"\n'],
  ['2026-01-01T00:00:00Z', 'text: "2026-01-01T00:00:00Z"\n'],
  ['a\nb\n', 'text: |\n  a\n  b\n'],
  ['x'.repeat(200), `text: ${'x'.repeat(200)}\n`],
])('the string %j is printed so that the API server reads a string', (text, expected) => {
  expect(printYaml({ text })).toBe(expected)
  expect(parseYaml(expected).value).toEqual({ text })
})

it('is parsed as the API server parses it', () => {
  expect(parseYaml('on: yes\ntime: 2026-01-01T00:00:00Z\nmode: 0644\nitems:\n- a\n').value).toMatchObject({ time: '2026-01-01T00:00:00Z', mode: 420, items: ['a'] })
})

it('reports the position of an error', () => {
  const { value, problems } = parseYaml('a: b\n  c: d\n')
  expect(value).toBeUndefined()
  expect(problems[0]).toMatchObject({ from: expect.any(Number), message: expect.stringMatching(/\(\d+:\d+\)$/) })
  expect(parseYaml('a: 1\na: 2\n').problems).toHaveLength(1)
})

it('keeps integers beyond 2^53', () => {
  const text = 'seed: 9007199254740993\nratio: 0.30000000000000004\nversion: "1.10"\nmode: "0755"\nfew: 3\n'
  const { value } = parseYaml(text)
  expect(value).toEqual({ seed: 9007199254740993n, ratio: 0.30000000000000004, version: '1.10', mode: '0755', few: 3 })
  expect(printYaml(value)).toBe(text)
})
