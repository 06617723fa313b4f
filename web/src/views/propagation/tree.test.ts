import { describe, expect, test } from 'vitest'
import type { Explanation } from '../../api/propagation'
import type { Hit } from '../../api/types'
import { healthOf, layoutTrees, buildMemberTree, memberPodsQuery, nodeIndexAfterKey, buildTree } from './tree'

const APPS = ['Deployment', 'ReplicaSet']
const hit = (kind: string, name: string, fields: Partial<Hit> = {}): Hit => ({
  cluster: 'm1', apiVersion: APPS.includes(kind) ? 'apps/v1' : 'v1', kind, resource: `${kind.toLowerCase()}s`, namespace: 'shop', name, matched: [], ...fields,
})

const graph = {
  nodes: [
    hit('Deployment', 'web', { ready: '6/7' }),
    hit('ReplicaSet', 'web-1', { ready: '6/7' }),
    hit('ReplicaSet', 'web-0', { ready: '0/0' }),
    ...Array.from({ length: 6 }, (_, n) => hit('Pod', `web-1-${n}`, { status: 'Running', ready: '1/1' })),
    hit('Pod', 'web-1-x', { status: 'CrashLoopBackOff' }),
    hit('Service', 'web'),
  ],
  edges: [
    { from: 1, to: 0, relation: 'owner' },
    { from: 2, to: 0, relation: 'owner' },
    ...Array.from({ length: 7 }, (_, n) => ({ from: n + 3, to: 1, relation: 'owner' })),
    { from: 10, to: 0, relation: 'uses' },
  ],
  more: false,
}
const explanation: Explanation = {
  template: { apiVersion: 'apps/v1', kind: 'Deployment', namespace: 'shop', name: 'web' },
  policies: [],
  binding: { apiVersion: 'work.karmada.io/v1alpha2', kind: 'ResourceBinding', namespace: 'shop', name: 'web-deployment', replicas: 7 },
  targets: [
    { cluster: 'm1', placed: 'Scheduled', replicas: 7, overrides: [], applied: true, health: 'Healthy' },
    { cluster: 'm2', placed: 'Evicting', overrides: [], applied: true, health: 'Unknown' },
  ],
  waiting: [],
}

test('dependents are child nodes, many pods of one status are grouped, and ReplicaSets without replicas are omitted', () => {
  const tree = buildMemberTree(graph, ({ kind }) => kind === 'Deployment')!
  expect(tree.health).toBe('bad')
  expect(tree.children.map(({ name }) => name)).toEqual(['web-1'])
  expect(tree.children[0]!.children.map(({ name, health }) => [name, health])).toEqual([
    ['web-1-x', 'bad'],
    ['6 × Running', 'good'],
  ])
  expect(tree.children[0]!.children[1]!.query).toContain('status:"Running"')
})

test('if the graph does not list all pods, they are counted by state, failing ones first', () => {
  const query = memberPodsQuery({ apiVersion: 'apps/v1', resource: 'deployments', namespace: 'shop', name: 'web' }, 'm1')
  expect(query).toBe('kind:pod cluster:=m1 ns:=shop owner:deployments.apps/web depth:3')
  const states = [
    { value: 'Running', count: 4_000 },
    { value: 'Init:0/1', count: 3 },
    { value: 'CrashLoopBackOff', count: 1 },
  ]
  const tree = buildMemberTree({ ...graph, more: true }, ({ kind }) => kind === 'Deployment', { query, total: 4_005, states })!
  expect(tree.children.map(({ name, health, children }) => [name, health, children.length])).toEqual([
    ['3 × Init:0/1', 'bad', 0],
    ['1 × CrashLoopBackOff', 'bad', 0],
    ['1 × …', 'unknown', 0],
    ['4000 × Running', 'good', 0],
    ['web-1', 'bad', 0],
  ])
  expect(tree.children[0]!.query).toBe(`${query} status:="Init:0/1"`)
  // An object without pods keeps its dependents.
  expect(buildMemberTree({ ...graph, more: true }, ({ kind }) => kind === 'Deployment', { query, total: 0, states: [] })!.children.map(({ name }) => name)).toEqual(['web-1'])
})

test('parents are centered on their children, and arrow keys navigate', () => {
  const tree = buildTree(explanation, new Map([['m1', buildMemberTree(graph, ({ kind }) => kind === 'Deployment')]]))
  const { placed, rows, levels } = layoutTrees(tree)
  expect([rows, levels]).toEqual([3, 6])
  expect(placed.map(({ node, row }) => [node.name, row])).toEqual([
    ['web', 1.25],
    ['web-deployment', 1.25],
    ['m1', 0.5],
    ['web', 0.5],
    ['web-1', 0.5],
    ['web-1-x', 0],
    ['6 × Running', 1],
    ['m2', 2],
  ])
  const name = (key: string, at: number) => placed[nodeIndexAfterKey(key, at, placed) ?? -1]?.node.name
  expect([name('ArrowRight', 1), name('ArrowDown', 2), name('ArrowLeft', 7), name('ArrowRight', 7), name('End', 0)]).toEqual(['m1', 'm2', 'web-deployment', undefined, 'm2'])
})

test.each([
  ['Running', 'good'],
  ['CrashLoopBackOff', 'bad'],
  ['Pending', 'bad'],
  ['Established', 'good'],
  ['Ready,SchedulingDisabled', 'bad'],
  ['Unknown', 'unknown'],
  ['Retain', 'unknown'],
  [undefined, 'unknown'],
] as const)('%s is %s', (status, health) => {
  expect(healthOf(status)).toBe(health)
})

describe('a cluster in the topology', () => {
  const buildClusterNode = (ready: string, waiting: Explanation['waiting'] = []) => {
    const member = buildMemberTree({ nodes: [hit('Deployment', 'web', { ready })], edges: [], more: false }, () => true)
    return buildTree({ ...explanation, waiting }, new Map([['m1', member]])).children[0]!.children[0]!
  }

  test.each([
    ['7/7', [], '7/7', 'good', undefined],
    ['4/7', [], '4/7', 'bad', undefined],
    // The Deployment in the member still has the replicas of the previous schedule result.
    ['4/4', [], '4/7', 'bad', undefined],
    ['7/7', [{ cause: 'DispatchingSuspended', message: '' }], '7/7', 'unknown', 'suspended'],
    ['7/7', [{ cause: 'DispatchingSuspended', cluster: 'm2', message: '' }], '7/7', 'good', undefined],
    ['7/7', [{ cause: 'ApplyFailed', cluster: 'm1', message: '' }], '7/7', 'good', 'failing'],
  ] as const)('with %s ready and blockers %j: note %s, health %s, edge %s', (ready, waiting, note, health, edge) => {
    expect(buildClusterNode(ready, [...waiting])).toMatchObject({ note, health, edge })
  })
})

describe('the Work between a cluster and its object', () => {
  const work = { apiVersion: 'work.karmada.io/v1alpha1', kind: 'Work', namespace: 'karmada-es-m1', name: 'web-5f7c' }
  const [target] = explanation.targets
  const buildClusterNode = (changed: Partial<Explanation['targets'][number]>, waiting: Explanation['waiting'], members: Parameters<typeof buildTree>[1]) =>
    buildTree({ ...explanation, waiting, targets: [{ ...target!, work, ...changed }] }, members).children[0]!.children[0]!
  const member = buildMemberTree({ nodes: [hit('Deployment', 'web', { ready: '7/7' })], edges: [], more: false }, () => true)

  test.each([
    [{}, [], 'Applied', 'good', undefined],
    [{ health: 'Unknown' }, [], 'Applied', 'unknown', undefined],
    [{ health: 'Unhealthy' }, [], 'Applied', 'bad', undefined],
    [{ applied: false }, [{ cause: 'ApplyFailed', cluster: 'm1', message: '' }], 'NotApplied', 'bad', 'failing'],
    [{}, [{ cause: 'DispatchingSuspended', cluster: 'm1', message: '' }], 'Suspended', 'unknown', 'suspended'],
    [{}, [{ cause: 'DispatchingSuspended', cluster: 'm2', message: '' }], 'Applied', 'good', undefined],
    // New schedule results wait; the Work of the current one is dispatched.
    [{}, [{ cause: 'SchedulingSuspended', message: '' }], 'Applied', 'good', 'suspended'],
  ] as const)('of %j with blockers %j: sync %s, health %s, edge %s', (changed, waiting, sync, health, edge) => {
    const [node] = buildClusterNode(changed, [...waiting], new Map([['m1', member]])).children
    expect(node).toMatchObject({ kind: 'Work', name: 'web-5f7c', health, edge, work: { ...work, sync } })
    expect(node!.children.map(({ kind, edge: memberEdge }) => [kind, memberEdge])).toEqual([['Deployment', edge]])
  })

  test('is shown while the object is loading or absent, and not in a collapsed cluster', () => {
    expect(buildClusterNode({}, [], new Map([['m1', undefined]])).children.map(({ kind, children }) => [kind, children.length])).toEqual([['Work', 0]])
    expect(buildClusterNode({}, [], new Map()).children).toEqual([])
  })
})

test('the policy is between the template and its binding', () => {
  const policy = { kind: 'PropagationPolicy', namespace: 'shop', name: 'web' }
  const root = buildTree({ ...explanation, policy }, new Map())
  expect(root.children.map(({ kind, policy: nodePolicy }) => [kind, nodePolicy])).toEqual([['PropagationPolicy', policy]])
  expect(root.children[0]!.children.map(({ id }) => id)).toEqual(['binding'])
  // No binding has been created yet.
  const { binding: _none, ...unbound } = explanation
  expect(buildTree({ ...unbound, policy, targets: [] }, new Map()).children[0]!.health).toBe('unknown')
})
