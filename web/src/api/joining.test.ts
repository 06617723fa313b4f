import { expect, test } from 'vitest'
import { parse, parseAllDocuments } from 'yaml'
import tunnels from '../../../docs/TUNNEL.md?raw'
import { agentAccountObjects, agentKubeconfig } from './joining'

test('an agent has exactly the documented permissions', () => {
  const documented = /```yaml\n([\s\S]*?)```/.exec(tunnels)?.[1] ?? ''
  const objects = parseAllDocuments(documented).map((document) => document.toJS() as { kind: string; apiVersion: string; rules?: unknown[]; metadata: unknown })
  const created = agentAccountObjects('m1').map(({ body }) => body as unknown as (typeof objects)[number])
  expect(objects.length).toBe(created.length)
  for (const expected of objects) {
    const found = created.find(({ kind }) => kind === expected.kind)
    expect(found).toMatchObject({ apiVersion: expected.apiVersion, metadata: expected.metadata as object })
    expect(found?.rules).toEqual(expected.rules)
  }
})

test('the kubeconfig of an agent contains the control plane and the token', () => {
  const info = { clusters: [{ name: '', cluster: { server: 'https://cp:6443', 'certificate-authority-data': 'QQ==' } }] }
  const config = parse(agentKubeconfig('m1', info, 'secret')) as { clusters: { cluster: unknown }[]; users: { user: unknown }[] }
  expect(config.clusters[0]!.cluster).toEqual(info.clusters[0]!.cluster)
  expect(config.users[0]!.user).toEqual({ token: 'secret' })
})
