import { describe, expect, it } from 'vitest'
import rust from '../../../index/query/src/fields.rs?raw'
import { canonicalField, fieldNames } from './fields'
import { characterOffset, byteOffset, tokenize } from './tokens'

describe('tokens', () => {
  const cases: [string, string][] = [
    ['kind:pod nginx', 'field(kind:) value(pod) text(nginx)'],
    ['-ns:kube-system web-0', 'not(-) field(ns:) value(kube-system) text(web-0)'],
    ['nginx:1.27 http://a/b', 'text(nginx:1.27) text(http://a/b)'],
    ['status:Running,"Not Ready"', 'field(status:) value(Running) operator(,) quoted("Not Ready")'],
    ['restarts:>5 age:<=1h', 'field(restarts:) compare(>) value(5) field(age:) compare(<=) value(1h)'],
    ['name:/^web-[0-9]+$/i', 'field(name:) regex(/^web-[0-9]+$/i)'],
    ['(a OR b) NOT c', 'paren(() text(a) operator(OR) text(b) paren()) operator(NOT) text(c)'],
    ['kind:(pod OR deploy)', 'field(kind:) paren(() value(pod) operator(OR) value(deploy) paren())'],
    ['has.event(reason:BackOff)', 'field(has.event) paren(() field(reason:) value(BackOff) paren())'],
    ['.metadata.labels[app.kubernetes.io/name]:web', 'field(.metadata.labels[app.kubernetes.io/name]:) value(web)'],
    ['status:!Running', 'field(status:) compare(!) value(Running)'],
    ['"open', 'quoted("open)'],
    ['or ORDER', 'text(or) text(ORDER)'],
    ['kind: ,', 'field(kind:) text(,)'],
  ]
  it.each(cases)('%s', (query, expected) => {
    expect(
      tokenize(query)
        .map(({ kind, start, end }) => `${kind}(${query.slice(start, end)})`)
        .join(' '),
    ).toBe(expected)
  })

  it('cover any text exactly once, in order', () => {
    for (const query of [')', '((', '"', '/', '-', '!', ':', 'kind:', 'kind:(', '- ', 'a)b', '容器 ns:商店', '\\"', 'kind:a,,b', 'has.x(']) {
      let at = 0
      for (const { start, end } of tokenize(query)) {
        expect(query.slice(at, start).trim()).toBe('')
        expect(end).toBeGreaterThan(start)
        at = end
      }
      expect(query.slice(at).trim()).toBe('')
    }
  })
})

it('the fields are those of the query language', () => {
  const known = [...rust.matchAll(/field\(\s*"([^"]+)",\s*&\[([^\]]*)\]/g)].flatMap(([, name, others]) => [
    name!,
    ...[...others!.matchAll(/"([^"]+)"/g)].map((other) => other[1]!),
  ])
  expect(known.length).toBeGreaterThan(50)
  expect(new Set(fieldNames())).toEqual(new Set(known.map((name) => name.toLowerCase())))
  expect(canonicalField('NS')).toBe('namespace')
})

it('offsets are converted between characters and bytes', () => {
  for (const [text, index, bytes] of [['kind', 2, 2], ['容器a', 1, 3], ['a😀b', 3, 5]] as const) {
    expect(byteOffset(text, index)).toBe(bytes)
    expect(characterOffset(text, bytes)).toBe(index)
  }
})
