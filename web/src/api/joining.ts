// Objects that an agent needs to join: an account in the control plane with the permissions of docs/TUNNEL.md and no others.
import { stringify } from 'yaml'
import { ApiError, CONTROL_PLANE, getJson, objectPath } from './client'
import { create, send } from './kube'

const NAMESPACE = 'karmada-cluster'
const RBAC = 'rbac.authorization.k8s.io'
/** Requested lifetime of the token; the control plane may grant less. */
const YEAR = 365 * 86_400

interface Made {
  apiVersion: string
  resource: string
  namespace?: string
  body: { metadata: { name: string; namespace?: string } } & Record<string, unknown>
}

/** The objects of an agent's account. */
export function account(cluster: string): Made[] {
  const role = `crowsnest:agent:${cluster}`
  const subjects = [{ kind: 'ServiceAccount', name: `agent-${cluster}`, namespace: NAMESPACE }]
  const rule = (apiGroup: string, resource: string, verbs: string[], names?: string[]) => ({
    apiGroups: [apiGroup],
    resources: [resource],
    verbs,
    ...(names && { resourceNames: names }),
  })
  const of = (kind: string, resource: string, namespaced: boolean, more: object): Made => ({
    apiVersion: `${RBAC}/v1`,
    resource,
    ...(namespaced && { namespace: NAMESPACE }),
    body: { apiVersion: `${RBAC}/v1`, kind, metadata: { name: role, ...(namespaced && { namespace: NAMESPACE }) }, ...more },
  })
  return [
    {
      apiVersion: 'v1',
      resource: 'serviceaccounts',
      namespace: NAMESPACE,
      body: { apiVersion: 'v1', kind: 'ServiceAccount', metadata: { name: `agent-${cluster}`, namespace: NAMESPACE } },
    },
    of('ClusterRole', 'clusterroles', false, {
      rules: [
        rule('cluster.karmada.io', 'clusters', ['create']),
        rule('cluster.karmada.io', 'clusters', ['get', 'patch'], [cluster]),
        rule('cluster.karmada.io', 'clusters/attach', ['create'], [cluster]),
        rule('', 'namespaces', ['get'], [NAMESPACE]),
        rule('certificates.k8s.io', 'certificatesigningrequests', ['create', 'get']),
      ],
    }),
    of('Role', 'roles', true, {
      rules: [rule('', 'secrets', ['create']), rule('', 'secrets', ['patch'], [cluster, `${cluster}-impersonator`])],
    }),
    of('ClusterRoleBinding', 'clusterrolebindings', false, { roleRef: { apiGroup: RBAC, kind: 'ClusterRole', name: role }, subjects }),
    of('RoleBinding', 'rolebindings', true, { roleRef: { apiGroup: RBAC, kind: 'Role', name: role }, subjects }),
  ]
}

/** Creates missing objects and a token; returns the token. */
export async function makeAccount(cluster: string): Promise<string> {
  if (!(await hasNamespace())) await made('v1', 'namespaces', undefined, { apiVersion: 'v1', kind: 'Namespace', metadata: { name: NAMESPACE } })
  for (const { apiVersion, resource, namespace, body } of account(cluster)) await made(apiVersion, resource, namespace, body)
  const name = `agent-${cluster}`
  const path = `${objectPath({ cluster: CONTROL_PLANE, apiVersion: 'v1', resource: 'serviceaccounts', namespace: NAMESPACE, name })}/token`
  const response = await send('POST', path, { apiVersion: 'authentication.k8s.io/v1', kind: 'TokenRequest', spec: { expirationSeconds: YEAR } })
  return ((await response.json()) as { status: { token: string } }).status.token
}

/** The namespace usually exists; users who may not read it try to create it. */
async function hasNamespace(): Promise<boolean> {
  try {
    await getJson(`/api/v1/namespaces/${NAMESPACE}`)
    return true
  } catch (error) {
    if (error instanceof ApiError && (error.code === 404 || error.code === 403)) return false
    throw error
  }
}

async function made(apiVersion: string, resource: string, namespace: string | undefined, body: unknown): Promise<void> {
  try {
    await create(apiVersion, resource, namespace, body)
  } catch (error) {
    if (!(error instanceof ApiError) || error.code !== 409) throw error
  }
}

/** The control plane's published address; undefined if there is none. */
export async function clusterInfo(signal?: AbortSignal): Promise<string | undefined> {
  try {
    const map = await getJson<{ data?: { kubeconfig?: string } }>('/api/v1/namespaces/kube-public/configmaps/cluster-info', signal)
    return map.data?.kubeconfig
  } catch (error) {
    if (error instanceof ApiError && (error.code === 404 || error.code === 403)) return undefined
    throw error
  }
}

/** The kubeconfig of an agent: the control plane's address and the token. */
export function kubeconfig(cluster: string, info: Record<string, unknown> | undefined, token: string): string {
  const user = `agent-${cluster}`
  const given = (info?.clusters as { cluster: unknown }[] | undefined)?.[0]?.cluster
  return stringify({
    apiVersion: 'v1',
    kind: 'Config',
    clusters: [{ name: 'crowsnest', cluster: given ?? { server: 'https://CONTROL-PLANE' } }],
    users: [{ name: user, user: { token } }],
    contexts: [{ name: 'crowsnest', context: { cluster: 'crowsnest', user } }],
    'current-context': 'crowsnest',
  })
}
