import { describe, expect, it } from 'vitest'
import { selectionOf, hasLimit, fieldValues, withoutTime, isAboutPast, sortBy, splitTerms, timeOf, toggleTerm } from './query'

describe('toggle', () => {
  const cases: [string, string, string, boolean, string][] = [
    ['', 'kind', 'Pod', false, 'kind:Pod'],
    ['nginx kind:Pod', 'kind', 'Pod', false, 'nginx'],
    ['nginx kind:pod', 'kind', 'Pod', false, 'nginx'],
    ['nginx -kind:Pod', 'kind', 'Pod', false, 'nginx kind:Pod'],
    ['nginx kind:Pod', 'kind', 'Pod', true, 'nginx -kind:Pod'],
    ['nginx', 'status', 'Not Ready', true, 'nginx -status:"Not Ready"'],
    ['ns:a,b x', 'namespace', 'a', false, 'ns:b x'],
    ['kind:!Pod', 'kind', 'Pod', true, ''],
    ['image:"nginx:1.27"', 'image', 'nginx:1.27', false, ''],
    ['kind:deploy x', 'kind', 'Deployment', false, 'x'],
    ['kind:deployments.apps x', 'kind', 'Deployment', false, 'x'],
    ['kind:deployments.apps,deployments.example.io', 'kind', 'Deployment.apps', false, 'kind:deployments.example.io'],
    ['kind:deployment', 'kind', 'Deployment.apps', false, 'kind:deployment kind:Deployment.apps'],
    ['-kind:deployments.apps', 'kind', 'Deployment', true, '-kind:deployments.apps -kind:Deployment'],
    ['kind:deploy,po x', 'kind', 'Deployment', false, 'kind:po x'],
    ['-kind:events x', 'kind', 'Event', true, 'x'],
    ['a OR b', 'kind', 'Pod', false, '(a OR b) kind:Pod'],
    ['a OR b sort:-age', 'kind', 'Pod', true, '(a OR b) -kind:Pod sort:-age'],
    ['kind:pod OR kind:node', 'kind', 'Node', false, '(kind:pod OR kind:node) kind:Node'],
    ['NOT kind:pod x', 'kind', 'Pod', true, 'x'],
    ['a AND kind:pod', 'kind', 'Pod', false, 'a'],
    ['(a OR b) c', 'kind', 'Pod', false, '(a OR b) c kind:Pod'],
    ['x', 'label:app', 'web', false, 'x label:app=web'],
    ['x label:app=web', 'label:app', 'web', false, 'x'],
    ['has.pod(kind:Pod)', 'kind', 'Pod', false, 'has.pod(kind:Pod) kind:Pod'],
  ]
  it.each(cases)('%s + %s:%s (%s)', (query, field, value, exclude, expected) => {
    expect(toggleTerm(query, field, value, exclude)).toBe(expected)
  })
})

describe('terms of a query', () => {
  it('are found by any alias and case of their field', () => {
    expect(selectionOf('NS:Shop', 'namespace', 'shop')).toBe('included')
    expect(selectionOf('-ns:kube-system,shop', 'namespace', 'shop')).toBe('excluded')
    expect(selectionOf('ns:shop-*', 'namespace', 'shop-a')).toBeUndefined()
    expect(selectionOf('kind:pod OR kind:node', 'kind', 'Node')).toBeUndefined()
    expect(fieldValues('cluster:a,"b c" -c:d', 'cluster')).toEqual(['a', 'b c', 'd'])
  })

  it('include a limit', () => {
    expect(hasLimit('kind:pod limit:5')).toBe(true)
    expect(hasLimit('kind:limitrange')).toBe(false)
  })

  it('include a time', () => {
    expect(isAboutPast('kind:pod at:now-2h')).toBe(true)
    expect(isAboutPast('"at:now" created:>now-2h')).toBe(false)
  })
})

describe('sortBy', () => {
  it('sorts ascending, then descending, then removes the sort', () => {
    const up = sortBy('kind:pod', 'restarts')
    expect(up).toBe('kind:pod sort:restarts')
    const down = sortBy(up, 'restarts')
    expect(down).toBe('kind:pod sort:-restarts')
    expect(sortBy(down, 'restarts')).toBe('kind:pod')
    expect(sortBy(down, 'name')).toBe('kind:pod sort:name')
    expect(sortBy('a OR b sort:age', 'age')).toBe('a OR b sort:-age')
  })
})

describe('split', () => {
  it('does not split quoted values and groups', () => {
    expect(splitTerms('a "b c" (d OR e) label:"x=\\"y z\\""')).toEqual(['a', '"b c"', '(d OR e)', 'label:"x=\\"y z\\""'])
  })
})

describe('a time in the query', () => {
  const cases: [string, string | undefined, string][] = [
    ['kind:pod at:now-5m', 'now-5m', 'kind:pod'],
    ['at:"2026-01-01 10:00" a OR b', '2026-01-01 10:00', 'a OR b'],
    ['during:10:00..11:00 kind:pod sort:-age', '10:00..11:00', 'kind:pod sort:-age'],
    ['kind:pod "at:now-5m"', undefined, 'kind:pod "at:now-5m"'],
    ['kind:pod created:<5m', undefined, 'kind:pod created:<5m'],
  ]
  it.each(cases)('%s', (query, time, now) => {
    expect(timeOf(query)).toBe(time)
    expect(withoutTime(query)).toBe(now)
    expect(isAboutPast(query)).toBe(time !== undefined)
  })
})
