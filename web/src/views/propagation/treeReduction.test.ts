import { expect, test } from 'vitest'
import { filterClusters, groupClusters, onlyProblems } from './treeReduction'
import type { TreeNode } from './tree'

const node = (kind: string, name: string, more: Partial<TreeNode> = {}): TreeNode => ({ id: `${kind} ${name}`, kind, name, health: 'good', children: [], ...more })
const cluster = (name: string, more: Partial<TreeNode> = {}) => node('Cluster', name, { cluster: name, ...more })
const names = ({ name, children }: TreeNode): unknown => (children.length === 0 ? name : { [name]: children.map(names) })

test('only problems and the nodes above them remain', () => {
  const root = node('Deployment', 'web', {
    children: [
      node('ResourceBinding', 'b', {
        children: [
          cluster('fine', { children: [node('Pod', 'a')] }),
          cluster('suspended', { edge: 'suspended' }),
          cluster('failing', { children: [node('ReplicaSet', 'r', { children: [node('Pod', 'x', { health: 'bad' }), node('Pod', 'y')] })] }),
        ],
      }),
    ],
  })
  expect(names(onlyProblems(root))).toEqual({ web: [{ b: ['suspended', { failing: [{ r: ['x'] }] }] }] })
  expect(names(onlyProblems(node('Deployment', 'web', { children: [cluster('fine')] })))).toEqual('web')
})

test('many collapsed clusters of one state are combined to one node', () => {
  const fine = Array.from({ length: 300 }, (_, nth) => cluster(`m${nth}`))
  const bad = ['x', 'y'].map((name) => cluster(name, { health: 'bad' }))
  const root = node('Deployment', 'web', { children: [node('ResourceBinding', 'b', { children: [...fine, ...bad] })] })
  const binding = groupClusters(root, (name) => name === 'm7', (clusters) => `cluster:${clusters.length}`).children[0]!
  expect(binding.children.map(({ kind, name, health }) => [kind, name, health])).toEqual([
    ['Cluster', 'm7', 'good'],
    ['Cluster', 'x', 'bad'],
    ['Cluster', 'y', 'bad'],
    ['Clusters', '299', 'good'],
  ])
  expect(binding.children.at(-1)!.query).toBe('cluster:299')
})

test.each([
  ['', 2, { shown: ['east-1', 'east-2'], more: 1 }],
  [' WEST', 2, { shown: ['west-1'], more: 0 }],
  ['none', 2, { shown: [], more: 0 }],
] as const)('clusters named %j', (text, limit, expected) => expect(filterClusters(['east-1', 'east-2', 'west-1'], text, limit)).toEqual(expected))
