// Creates the account that an agent needs to join a cluster. Its permissions are those of docs/TUNNEL.md.
import { stringify } from 'yaml'
import { ApiError, CONTROL_PLANE, getJson, objectPath } from './client'
import { createObject, send } from './kube'

const NAMESPACE = 'karmada-cluster'
const RBAC_GROUP = 'rbac.authorization.k8s.io'
/** Requested lifetime of the token: one year. The control plane may grant less. */
const TOKEN_LIFETIME_SECONDS = 365 * 86_400

interface AccountObject {
  apiVersion: string
  resource: string
  namespace?: string
  body: { metadata: { name: string; namespace?: string } } & Record<string, unknown>
}

/** ServiceAccount, roles and bindings of a cluster's agent. */
export function agentAccountObjects(cluster: string): AccountObject[] {
  const role = `crowsnest:agent:${cluster}`
  const subjects = [{ kind: 'ServiceAccount', name: `agent-${cluster}`, namespace: NAMESPACE }]
  const rule = (apiGroup: string, resource: string, verbs: string[], resourceNames?: string[]) => ({
    apiGroups: [apiGroup],
    resources: [resource],
    verbs,
    ...(resourceNames && { resourceNames: resourceNames }),
  })
  const rbacObject = (kind: string, resource: string, namespaced: boolean, fields: object): AccountObject => ({
    apiVersion: `${RBAC_GROUP}/v1`,
    resource,
    ...(namespaced && { namespace: NAMESPACE }),
    body: { apiVersion: `${RBAC_GROUP}/v1`, kind, metadata: { name: role, ...(namespaced && { namespace: NAMESPACE }) }, ...fields },
  })
  return [
    {
      apiVersion: 'v1',
      resource: 'serviceaccounts',
      namespace: NAMESPACE,
      body: { apiVersion: 'v1', kind: 'ServiceAccount', metadata: { name: `agent-${cluster}`, namespace: NAMESPACE } },
    },
    rbacObject('ClusterRole', 'clusterroles', false, {
      rules: [
        rule('cluster.karmada.io', 'clusters', ['create']),
        rule('cluster.karmada.io', 'clusters', ['get', 'patch'], [cluster]),
        rule('cluster.karmada.io', 'clusters/attach', ['create'], [cluster]),
        rule('', 'namespaces', ['get'], [NAMESPACE]),
        rule('certificates.k8s.io', 'certificatesigningrequests', ['create', 'get']),
      ],
    }),
    rbacObject('Role', 'roles', true, {
      rules: [rule('', 'secrets', ['create']), rule('', 'secrets', ['patch'], [cluster, `${cluster}-impersonator`])],
    }),
    rbacObject('ClusterRoleBinding', 'clusterrolebindings', false, { roleRef: { apiGroup: RBAC_GROUP, kind: 'ClusterRole', name: role }, subjects }),
    rbacObject('RoleBinding', 'rolebindings', true, { roleRef: { apiGroup: RBAC_GROUP, kind: 'Role', name: role }, subjects }),
  ]
}

/** Creates the account of a cluster's agent, as far as it does not exist, and returns a new token for it. */
export async function createAgentAccount(cluster: string): Promise<string> {
  if (!(await hasNamespace())) await createIfAbsent('v1', 'namespaces', undefined, { apiVersion: 'v1', kind: 'Namespace', metadata: { name: NAMESPACE } })
  for (const { apiVersion, resource, namespace, body } of agentAccountObjects(cluster)) await createIfAbsent(apiVersion, resource, namespace, body)
  const name = `agent-${cluster}`
  const path = `${objectPath({ cluster: CONTROL_PLANE, apiVersion: 'v1', resource: 'serviceaccounts', namespace: NAMESPACE, name })}/token`
  const response = await send('POST', path, { apiVersion: 'authentication.k8s.io/v1', kind: 'TokenRequest', spec: { expirationSeconds: TOKEN_LIFETIME_SECONDS } })
  return ((await response.json()) as { status: { token: string } }).status.token
}

/** True if the namespace exists. False also for users who may not read it: creating it fails only if it does not exist. */
async function hasNamespace(): Promise<boolean> {
  try {
    await getJson(`/api/v1/namespaces/${NAMESPACE}`)
    return true
  } catch (error) {
    if (error instanceof ApiError && (error.code === 404 || error.code === 403)) return false
    throw error
  }
}

async function createIfAbsent(apiVersion: string, resource: string, namespace: string | undefined, body: unknown): Promise<void> {
  try {
    await createObject(apiVersion, resource, namespace, body)
  } catch (error) {
    if (!(error instanceof ApiError) || error.code !== 409) throw error
  }
}

/** The kubeconfig that the control plane publishes in kube-public/cluster-info; undefined if there is none, or the user may not read it. */
export async function readClusterInfo(signal?: AbortSignal): Promise<string | undefined> {
  try {
    const map = await getJson<{ data?: { kubeconfig?: string } }>('/api/v1/namespaces/kube-public/configmaps/cluster-info', signal)
    return map.data?.kubeconfig
  } catch (error) {
    if (error instanceof ApiError && (error.code === 404 || error.code === 403)) return undefined
    throw error
  }
}

/** Kubeconfig of a cluster's agent with a token. `info` is the published kubeconfig; without it the server address is a placeholder. */
export function agentKubeconfig(cluster: string, info: Record<string, unknown> | undefined, token: string): string {
  const user = `agent-${cluster}`
  const published = (info?.clusters as { cluster: unknown }[] | undefined)?.[0]?.cluster
  return stringify({
    apiVersion: 'v1',
    kind: 'Config',
    clusters: [{ name: 'crowsnest', cluster: published ?? { server: 'https://CONTROL-PLANE' } }],
    users: [{ name: user, user: { token } }],
    contexts: [{ name: 'crowsnest', context: { cluster: 'crowsnest', user } }],
    'current-context': 'crowsnest',
  })
}
