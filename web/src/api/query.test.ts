import { describe, expect, it } from 'vitest'
import { split, toggle } from './query'

describe('toggle', () => {
  const cases: [string, string, string, boolean, string][] = [
    ['', 'kind', 'Pod', false, 'kind:Pod'],
    ['nginx kind:Pod', 'kind', 'Pod', false, 'nginx'],
    ['nginx -kind:Pod', 'kind', 'Pod', false, 'nginx kind:Pod'],
    ['nginx', 'status', 'Not Ready', true, 'nginx -status:"Not Ready"'],
  ]
  it.each(cases)('%s + %s:%s', (query, field, value, exclude, expected) => {
    expect(toggle(query, field, value, exclude)).toBe(expected)
  })
})

describe('split', () => {
  it('keeps quotes and groups whole', () => {
    expect(split('a "b c" (d OR e) label:"x=\\"y z\\""')).toEqual(['a', '"b c"', '(d OR e)', 'label:"x=\\"y z\\""'])
  })
})
