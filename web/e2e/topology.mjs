// The topology of a Deployment whose changes do not reach its members. Called by propagation.mjs.
import assert from 'node:assert/strict'
import { api } from './browser.mjs'

const NAME = 'paused'
const METADATA = { name: NAME, namespace: 'default' }
const POLICIES = '/apis/policy.karmada.io/v1alpha1/namespaces/default/propagationpolicies'
const DEPLOYMENTS = '/apis/apps/v1/namespaces/default/deployments'
const EXPLANATION = new RegExp(`/explanations/deployments\\.apps(:|%3A)${NAME}$`)

function deploymentWith(replicas) {
  const labels = { app: NAME }
  const template = { metadata: { labels }, spec: { containers: [{ name: NAME, image: 'nginx:1.27' }] } }
  return { apiVersion: 'apps/v1', kind: 'Deployment', metadata: METADATA, spec: { replicas, selector: { matchLabels: labels }, template } }
}

const POLICY = {
  apiVersion: 'policy.karmada.io/v1alpha1',
  kind: 'PropagationPolicy',
  metadata: METADATA,
  spec: { resourceSelectors: [{ apiVersion: 'apps/v1', kind: 'Deployment', name: NAME }], placement: { clusterAffinity: { clusterNames: ['member2', 'member3'] } } },
}

/** The width and the dashes of an edge, by which it can be recognized without colours. */
function readStroke(page, selector) {
  return page.locator(`.topology .edge${selector}`).first().evaluate((edge) => {
    const { strokeWidth, strokeDasharray } = getComputedStyle(edge)
    return `${strokeWidth} ${strokeDasharray}`
  })
}

/** Edges of failing and of suspended targets have different strokes, and a target with fewer replicas than desired is not shown as healthy. */
export async function checkSuspension(page, origin) {
  await api(page, 'POST', POLICIES, POLICY)
  await api(page, 'POST', DEPLOYMENTS, deploymentWith(4))
  await page.goto(`${origin}/topology?${new URLSearchParams({ apiVersion: 'apps/v1', kind: 'Deployment', ...METADATA })}`)
  const tree = page.getByRole('tree', { name: `Topology of ${NAME}` })
  const item = (name) => tree.getByRole('treeitem', { name })
  for (const cluster of ['member2', 'member3']) await item(new RegExp(`^✓ Cluster 4/4 ${cluster}`)).waitFor()
  const edge = (kind) => page.locator(`.topology .edge.${kind}`).first()
  const strokes = [await readStroke(page, ':not(.failing, .suspended)')]

  // The response is modified, because all targets in the fleet are applied.
  await page.route(EXPLANATION, async (route) => {
    const response = await route.fetch()
    const explanation = await response.json()
    explanation.targets.find(({ cluster }) => cluster === 'member2').applied = false
    await route.fulfill({ response, json: explanation })
  })
  // Playwright considers a straight edge hidden, because its height is 0.
  await edge('failing').waitFor({ state: 'attached' })
  strokes.push(await readStroke(page, '.failing'))
  await item(/^✗ Cluster 4\/4 member2/).waitFor()
  await page.unroute(EXPLANATION)
  await edge('failing').waitFor({ state: 'detached' })

  await api(page, 'PATCH', `${POLICIES}/${NAME}`, { spec: { suspension: { dispatching: true } } })
  await edge('suspended').waitFor({ state: 'attached' })
  strokes.push(await readStroke(page, '.suspended'))
  assert.equal(new Set(strokes).size, 3, strokes.join('; '))
  await item(/Work suspended /).first().waitFor()
  await api(page, 'PATCH', `${DEPLOYMENTS}/${NAME}`, { spec: { replicas: 8 } })
  for (const cluster of ['member2', 'member3']) await item(new RegExp(`^✗ Cluster 4/8 ${cluster}`)).waitFor()
  for (const kind of ['Deployment', 'PropagationPolicy', 'ResourceBinding']) await item(new RegExp(`^✗ ${kind} .*${NAME}`)).waitFor()
  assert.equal(await item(/^✓ (Cluster|Work)/).count(), 0)
}

/** Deletes the objects that `checkSuspension` created. */
export async function deleteSuspended(page) {
  await api(page, 'PATCH', `${POLICIES}/${NAME}`, { spec: { suspension: null } })
  await api(page, 'DELETE', `${DEPLOYMENTS}/${NAME}`)
  await api(page, 'DELETE', `${POLICIES}/${NAME}`)
}
