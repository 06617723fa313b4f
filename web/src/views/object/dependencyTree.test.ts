import { expect, it, test } from 'vitest'
import { effectOfKey, toTree, visibleItems, type DependencyNode } from './dependencyTree'

const node = (kind: string, name: string, uid: string | undefined = name) => ({ cluster: 'm1', apiVersion: 'v1', kind, resource: `${kind.toLowerCase()}s`, name, ...(uid && { uid }) })

test('the parent of an object is the one from which it was reached', () => {
  const nodes = [node('Secret', 'db'), node('Pod', 'web-0'), node('EndpointSlice', 'web'), node('ReplicaSet', 'set'), node('Pod', 'other', '')]
  const edges = [
    { from: 1, to: 0, type: 'USES', via: ['spec.a', 'spec.b'] },
    { from: 2, to: 1, type: 'ROUTES_TO', via: [] },
    { from: 0, to: 3, type: 'OWNS', via: [] },
    { from: 4, to: 0, type: 'USES', via: [] },
  ]
  const reached = [
    { node: 1, distance: 1, edge: 0 },
    { node: 3, distance: 1, edge: 2 },
    { node: 4, distance: 1, edge: 3 },
    { node: 2, distance: 2, edge: 1 },
    { node: 9, distance: 3, edge: 1 },
    { node: 0, distance: 3, edge: 0 },
  ]
  const describe = ({ node, relation, via, children }: DependencyNode): unknown => [node.name, relation, via, children.map(describe)]
  const tree = toTree({ nodes, edges, reached, notices: [] })
  expect(tree && describe(tree)).toEqual([
    'db', '', '', [
      ['web-0', '← USES', 'spec.a, spec.b', [['web', '← ROUTES_TO', '', []]]],
      ['set', 'OWNS →', '', []],
      ['other', '← USES', '', []],
    ],
  ])
  expect(new Set(tree?.children.map(({ id }) => id)).size).toBe(3)
  expect(toTree({ nodes: [], edges: [], reached: [], notices: [] })).toBeUndefined()
})

test('objects of two clusters with the same UID have different ids', () => {
  const nodes = [node('Namespace', 'shop'), node('Pod', 'web', 'u1'), { ...node('Pod', 'web', 'u1'), cluster: 'm2' }, node('Pod', 'new', '')]
  const edges = [1, 2, 3].map((to) => ({ from: 0, to, type: 'CONTAINS', via: [] }))
  const tree = toTree({ nodes, edges, reached: edges.map(({ to }, edge) => ({ node: to, distance: 1, edge })), notices: [] })
  expect(tree?.children.map(({ id }) => id)).toEqual(['m1 u1', 'm2 u1', 'm1\nv1\npods\n\nnew'])
})

const entry = (id: string, ...children: DependencyNode[]): DependencyNode => ({ id, node: node('Pod', id), relation: '', via: '', children })
const TREE = entry('root', entry('a', entry('a1', entry('a11'))), entry('b'))
/** The items, with their level, and `+` or `-` if they are collapsed or expanded. */
const linesOf = (tree: DependencyNode, ...toggled: string[]) =>
  visibleItems(tree, new Set(toggled)).map(({ id, level, isExpanded, hiddenCount }) => `${level}${isExpanded === undefined ? '' : isExpanded ? '-' : '+'} ${hiddenCount > 0 ? `${hiddenCount} more` : id}`)

it.each([
  [[], ['1- root', '2- a', '3+ a1', '2 b']],
  [['a1'], ['1- root', '2- a', '3- a1', '4 a11', '2 b']],
  [['a'], ['1- root', '2+ a', '2 b']],
  [['root', 'a1', 'unknown'], ['1+ root']],
])('with %j toggled, the items are %j', (toggled, lines) => expect(linesOf(TREE, ...toggled)).toEqual(lines))

test('the number of children is limited', () => {
  const large = entry('root', ...Array.from({ length: 150 }, (_, nth) => entry(`n${nth}`)))
  expect([linesOf(large).length, linesOf(large).at(-1)]).toEqual([22, '2 130 more'])
  expect([linesOf(large, 'root more 0').length, linesOf(large, 'root more 0').at(-1)]).toEqual([122, '2 30 more'])
  expect(linesOf(large, 'root more 0', 'root more 1').length).toBe(151)
  const items = visibleItems(large, new Set())
  expect(items.at(-1)).toMatchObject({ id: 'root more 0', position: 21, siblingCount: 21, parent: 0 })
  expect(effectOfKey('ArrowRight', 21, items)).toEqual({ toggle: 'root more 0' })
})

it.each([
  ['ArrowDown', 0, { moveTo: 1 }],
  ['ArrowDown', 3, { moveTo: 3 }],
  ['ArrowUp', 3, { moveTo: 2 }],
  ['ArrowUp', 0, { moveTo: 0 }],
  ['Home', 2, { moveTo: 0 }],
  ['End', 0, { moveTo: 3 }],
  ['ArrowRight', 0, { moveTo: 1 }],
  ['ArrowRight', 2, { toggle: 'a1' }],
  ['ArrowRight', 3, undefined],
  ['ArrowLeft', 1, { toggle: 'a' }],
  ['ArrowLeft', 2, { moveTo: 1 }],
  ['ArrowLeft', 3, { moveTo: 0 }],
  [' ', 2, { toggle: 'a1' }],
  [' ', 3, undefined],
  ['Enter', 0, undefined],
  ['ArrowDown', 9, undefined],
])('the effect of the key %j on the item %s is %j', (key, at, effect) => expect(effectOfKey(key, at, visibleItems(TREE, new Set()))).toEqual(effect))
