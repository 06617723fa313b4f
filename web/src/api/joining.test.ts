import { expect, test } from 'vitest'
import { parse, parseAllDocuments } from 'yaml'
import tunnels from '../../../docs/TUNNEL.md?raw'
import { account, kubeconfig } from './joining'

test('an agent gets the rights that are documented, and no others', () => {
  const documented = /```yaml\n([\s\S]*?)```/.exec(tunnels)?.[1] ?? ''
  const objects = parseAllDocuments(documented).map((document) => document.toJS() as { kind: string; apiVersion: string; rules?: unknown[]; metadata: unknown })
  const made = account('m1').map(({ body }) => body as unknown as (typeof objects)[number])
  expect(objects.length).toBe(made.length)
  for (const wanted of objects) {
    const found = made.find(({ kind }) => kind === wanted.kind)
    expect(found).toMatchObject({ apiVersion: wanted.apiVersion, metadata: wanted.metadata as object })
    expect(found?.rules).toEqual(wanted.rules)
  }
})

test('its kubeconfig names the control plane and the token', () => {
  const info = { clusters: [{ name: '', cluster: { server: 'https://cp:6443', 'certificate-authority-data': 'QQ==' } }] }
  const config = parse(kubeconfig('m1', info, 'secret')) as { clusters: { cluster: unknown }[]; users: { user: unknown }[] }
  expect(config.clusters[0]!.cluster).toEqual(info.clusters[0]!.cluster)
  expect(config.users[0]!.user).toEqual({ token: 'secret' })
})
