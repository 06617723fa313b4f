import { expect, test } from 'vitest'
import type { Hit } from '../../api/types'
import type { TreeNode } from '../propagation/tree'
import { pathTrees } from './pathTrees'

const hit = (kind: string, name: string): Hit => ({ cluster: 'm1', apiVersion: 'v1', kind, resource: `${kind.toLowerCase()}s`, namespace: 'shop', name, matched: [] })
const nodes = [hit('Secret', 'db'), hit('Deployment', 'web'), hit('Pod', 'web-0'), hit('Pod', 'web-1'), hit('Secret', 'other')]
const edges = [
  { from: 1, to: 0, type: 'USES', via: ['spec.a', 'spec.b'] },
  { from: 1, to: 2, type: 'OWNS', via: ['metadata.ownerReferences'] },
  { from: 1, to: 3, type: 'OWNS', via: ['metadata.ownerReferences'] },
]
const summarize = ({ note, name, title, children }: TreeNode): unknown => [note, name, title, children.map(summarize)]

test('paths with the same beginning share it', () => {
  const trees = pathTrees({ nodes, edges, paths: [{ nodes: [0, 1, 2], edges: [0, 1] }, { nodes: [0, 1, 3], edges: [0, 2] }, { nodes: [4], edges: [] }] })
  const owned = 'metadata.ownerReferences'
  expect(trees.map(summarize)).toEqual([
    ['', 'db', undefined, [['← USES', 'web', 'spec.a, spec.b', [['OWNS →', 'web-0', owned, []], ['OWNS →', 'web-1', owned, []]]]]],
    ['', 'other', undefined, []],
  ])
  // An object can be in several places.
  const ids = (tree: TreeNode): string[] => [tree.id, ...tree.children.flatMap(ids)]
  const all = trees.flatMap(ids)
  expect(new Set(all).size).toBe(all.length)
})
