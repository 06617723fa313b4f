import { describe, expect, it } from 'vitest'
import { apply, computeChanges, mergeThreeWay, formatPath } from './merge'

const base = {
  metadata: { resourceVersion: '1', labels: { app: 'web' } },
  spec: { replicas: 2, args: ['a', 'b'], containers: [{ name: 'web', image: 'nginx:1' }, { name: 'log', image: 'log:1' }] },
  status: { ready: 2 },
}
/** An edited copy. */
function edited(edit: (copy: typeof base & Record<string, any>) => void) {
  const copy = structuredClone(base)
  edit(copy)
  return copy
}
const formattedChanges = (one: unknown, other: unknown) => computeChanges(one, other).map(({ path, ...rest }) => [formatPath(path), rest])

describe('changes', () => {
  it.each([
    ['a value', edited((o) => (o.spec.replicas = 3)), [['spec.replicas', { before: 2, after: 3 }]]],
    ['an added field', edited((o) => ((o.metadata.labels as any).tier = 'x')), [['metadata.labels.tier', { after: 'x' }]]],
    ['a removed field', edited((o) => delete (o as any).status), [['status', { before: { ready: 2 } }]]],
    ['an element by its name, at any index', edited((o) => (o.spec.containers = [base.spec.containers[1]!, { name: 'web', image: 'nginx:2' }])), [['spec.containers[web].image', { before: 'nginx:1', after: 'nginx:2' }]]],
    ['a list without names as a whole', edited((o) => (o.spec.args = ['a'])), [['spec.args', { before: ['a', 'b'], after: ['a'] }]]],
    ['nothing', edited(() => undefined), []],
  ])('%s', (_, after, expected) => {
    expect(formattedChanges(base, after)).toEqual(expected)
  })

  it('transform the first version into the second', () => {
    const after = edited((o) => {
      o.spec.containers = [{ name: 'web', image: 'nginx:2' }, { name: 'new', image: 'n' }]
      delete (o.metadata.labels as any).app
      o.spec.args = []
    })
    expect(apply(base, computeChanges(base, after))).toEqual(after)
  })
})

describe('a three-way merge', () => {
  it('has no conflicts in fields of the server', () => {
    const theirs = edited((o) => {
      o.metadata.resourceVersion = '2'
      o.status.ready = 1
    })
    const mine = edited((o) => (o.spec.replicas = 5))
    const merged = mergeThreeWay(base, mine, theirs)
    expect(merged).toMatchObject({ theirs: [], conflicts: [] })
    expect(apply(theirs, merged.mine)).toEqual({ ...theirs, spec: mine.spec })
  })

  it('combines changes of different fields', () => {
    const theirs = edited((o) => (o.spec.containers[0]!.image = 'nginx:9'))
    const mine = edited((o) => (o.spec.containers[1]!.image = 'log:9'))
    const merged = mergeThreeWay(base, mine, theirs)
    expect(merged.conflicts).toEqual([])
    expect((apply(theirs, merged.mine) as typeof base).spec.containers).toEqual([{ name: 'web', image: 'nginx:9' }, { name: 'log', image: 'log:9' }])
  })

  it.each([
    ['changed to different values', edited((o) => (o.spec.replicas = 3)), edited((o) => (o.spec.replicas = 4)), ['spec.replicas']],
    ['changed to the same value', edited((o) => (o.spec.replicas = 3)), edited((o) => (o.spec.replicas = 3)), []],
    ['removed on one side and changed on the other', edited((o) => o.spec.containers.pop()), edited((o) => (o.spec.containers[1]!.image = 'x')), ['spec.containers[log]']],
  ])('compares a field %s', (_, mine, theirs, expected) => {
    expect(mergeThreeWay(base, mine, theirs).conflicts.map((conflict) => formatPath(conflict.mine.path))).toEqual(expected)
  })
})

it('large integers are compared and kept exactly', () => {
  const [original, current] = [{ spec: { seed: 9007199254740993n, note: 'a' } }, { spec: { seed: 9007199254740993n, note: 'a', more: 1 } }]
  const mine = { spec: { seed: 9007199254740992n, note: 'b' } }
  const { mine: ownChanges, conflicts } = mergeThreeWay(original, mine, current)
  expect(conflicts).toEqual([])
  expect(apply(current, ownChanges)).toEqual({ spec: { seed: 9007199254740992n, note: 'b', more: 1 } })
})
