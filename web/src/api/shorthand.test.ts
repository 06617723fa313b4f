import { describe, expect, it } from 'vitest'
import { fromShorthand, isShorthand } from './shorthand'

describe('short commands', () => {
  const cases: [string, string][] = [
    [':pod', 'kind:pod'],
    [':', ''],
    [':pod shop', 'kind:pod ns:shop'],
    [':pod all @prod-*', 'kind:pod cluster:prod-*'],
    [':deploy shop @member1', 'kind:deploy ns:shop cluster:member1'],
    [':pod @control-plane', 'kind:pod cluster:@control-plane'],
    [':pod app=web', 'kind:pod label:app=web'],
    [':pod shop nginx', 'kind:pod ns:shop nginx'],
    [':pod /web-[0-9]+', 'kind:pod name:/web-[0-9]+/i'],
    [':pod /!a/b', 'kind:pod -name:/a\\/b/i'],
    [':pod /-l app=web,tier!=db', 'kind:pod label:"app=web,tier!=db"'],
    [':pod /-f chekout', 'kind:pod chekout~'],
    [':po kube-*', 'kind:po ns:kube-*'],
    [':@member2', 'cluster:member2'],
  ]
  it.each(cases)('%s is %s', (text, query) => expect(fromShorthand(text)).toBe(query))

  it('begin with a colon', () => {
    expect(isShorthand(' :po')).toBe(true)
    expect(isShorthand('kind:po')).toBe(false)
  })
})
