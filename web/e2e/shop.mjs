// Checks and reverts effects of the five main tasks on the fleet of tests/tests/tasks.rs.
import { api, waitUntil } from './browser.mjs'

const DEPLOYMENTS = 'apis/apps/v1/namespaces/shop/deployments'
const member = (name) => `/apis/cluster.karmada.io/v1alpha1/clusters/${name}/proxy`
const BINDING = '/apis/work.karmada.io/v1alpha2/namespaces/shop/resourcebindings/api-deployment'
const POLICY = '/apis/policy.karmada.io/v1alpha1/namespaces/shop/propagationpolicies/api'
/** Deployments with the image redis:6.2: a template, its copy, and one that is not propagated. */
const OLD_DEPLOYMENTS = [['', 'cache'], [member('east'), 'cache'], [member('west'), 'report']]

/** The times at which the Deployments with the old image were restarted; undefined for one that was not. */
export function readRestarts(page) {
  const read = ([root, name]) => api(page, 'GET', `${root}/${DEPLOYMENTS}/${name}`)
  return Promise.all(OLD_DEPLOYMENTS.map(async (deployment) => (await read(deployment)).spec.template.metadata.annotations?.['kubectl.kubernetes.io/restartedAt']))
}

/** Waits until all Deployments with the old image were restarted after the times `before`. */
export async function waitForRestarts(page, before) {
  await waitUntil('the restarts', async () => (await readRestarts(page)).every((time, nth) => ![undefined, before[nth]].includes(time)))
}

/** Waits until the Deployment `api` has left the cluster east. */
export async function waitForMove(page) {
  await waitUntil('the move', async () => {
    const { spec } = await api(page, 'GET', BINDING)
    return spec.clusters.map(({ name, replicas }) => `${name} ${replicas}`).join() === 'west 4'
  })
}

/** Moves the Deployment `api` back to the cluster east. */
export async function moveBack(page) {
  await api(page, 'PATCH', POLICY, { spec: { placement: { clusterAffinity: { exclude: null } } } })
  const count = async (q) => (await api(page, 'GET', `/apis/search.crowsnest.io/v1alpha1/count?q=${encodeURIComponent(q)}`)).total
  const running = 'kind:pod ns:shop label:app=api status:Running'
  await waitUntil('the move back', async () => (await count(running)) === 4 && (await count(`${running} cluster:east`)) === 2)
}
