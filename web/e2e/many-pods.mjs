// Flows on a fleet with many pods: typing, facets, the position in a long list, actions on many results, and the topology of many pods.
// Run by .ci/ui-budgets, or alone: node e2e/many-pods.mjs <address with token> <number of pods>
import assert from 'node:assert/strict'
import { api, assertAccessible, isMain, runSignedIn, waitUntil } from './browser.mjs'
import { MAX_RENDERED_ROWS, ROW_HEIGHT, scroll } from './scroll.mjs'

/** Pods of the Deployment `many` in each member: more than the first page of results, fewer than the maximum of an action. */
const REPLICAS = 60
/** Pods in each member after the Deployment has been scaled: more than the maximum of the graph of related objects (200 nodes). */
const SCALED_REPLICAS = 220
const MEMBERS = ['member1', 'member2', 'member3']
const METADATA = { name: 'many', namespace: 'default' }
const POLICIES = '/apis/policy.karmada.io/v1alpha1/namespaces/default/propagationpolicies'
const DEPLOYMENTS = '/apis/apps/v1/namespaces/default/deployments'
/** Maximum relative difference between two counts, because pods change in the meantime. */
const MAX_DIFFERENCE = 0.02
/** Maximum number of nodes of a topology, in which pods in the same state are grouped. */
const MAX_TREE_NODES = 40

const searchBox = (page) => page.getByRole('combobox', { name: 'Search all clusters' })
const rows = (page) => page.locator('.hits .row:not(.head)')
const peek = (page) => page.getByRole('region', { name: 'Selected result' })

async function waitForResults(page, q) {
  await page.waitForURL((url) => url.searchParams.get('q') === q)
  await page.locator('.hits[aria-busy=false]').waitFor()
  await page.getByText(/objects? in [\d.]+ ms/).waitFor()
}

async function search(page, origin, q) {
  await page.goto(`${origin}/search?${new URLSearchParams({ q })}`)
  await waitForResults(page, q)
}

/** Number of results that the page shows. */
async function readTotal(page) {
  return Number(/[\d,]+/.exec(await page.getByText(/objects? in [\d.]+ ms/).textContent())[0].replaceAll(',', ''))
}

const count = async (page, q) => (await api(page, 'GET', `/apis/search.crowsnest.io/v1alpha1/count?${new URLSearchParams({ q })}`)).total

async function createDeployment(page) {
  const labels = { app: 'many' }
  const template = { metadata: { labels }, spec: { containers: [{ name: 'many', image: 'nginx:1.27' }] } }
  await api(page, 'POST', POLICIES, {
    apiVersion: 'policy.karmada.io/v1alpha1',
    kind: 'PropagationPolicy',
    metadata: METADATA,
    spec: { resourceSelectors: [{ apiVersion: 'apps/v1', kind: 'Deployment', name: 'many' }], placement: { clusterAffinity: { clusterNames: MEMBERS } } },
  })
  await api(page, 'POST', DEPLOYMENTS, { apiVersion: 'apps/v1', kind: 'Deployment', metadata: METADATA, spec: { replicas: REPLICAS, selector: { matchLabels: labels }, template } })
  await waitForRunning(page, REPLICAS)
}

/** Waits until the Deployment has this number of running pods in each member. */
async function waitForRunning(page, replicas) {
  await waitUntil(`${replicas} pods in each member`, async () => (await count(page, 'kind:pod ns:default label:app=many status:Running')) === MEMBERS.length * replicas)
}

async function deleteDeployment(page) {
  await api(page, 'DELETE', `${DEPLOYMENTS}/many`)
  await api(page, 'DELETE', `${POLICIES}/many`)
}

/** After fast typing, the results are those of the complete query. Only visible rows are rendered. */
async function checkTyping(page, origin, pods) {
  const q = 'kind:pod status:Running'
  await page.goto(origin)
  await searchBox(page).and(page.locator(':focus')).waitFor()
  await page.keyboard.type(q, { delay: 40 })
  await page.keyboard.press('Enter')
  await waitForResults(page, q)
  const total = await readTotal(page)
  assert.ok(total > pods / 2, `${total} of ${pods} pods`)
  const rendered = await rows(page).count()
  assert.ok(rendered < MAX_RENDERED_ROWS, `${rendered} rows are rendered`)
  await assertAccessible(page)
}

/** The count of a facet equals the number of results after a click on the facet. */
async function checkFacets(page, origin) {
  await search(page, origin, 'kind:pod')
  const facet = page.getByRole('complementary', { name: 'Facets' }).getByRole('button', { name: /^member1 \d/ })
  await facet.waitFor()
  const expected = Number(/([\d,]+)$/.exec((await facet.textContent()).trim())[1].replaceAll(',', ''))
  await facet.click()
  await waitForResults(page, 'kind:pod cluster:member1')
  const total = await readTotal(page)
  assert.ok(Math.abs(total - expected) <= expected * MAX_DIFFERENCE, `${total} results after a click on a facet with the count ${expected}`)
  await facet.click()
  await waitForResults(page, 'kind:pod')
}

/** Runs in the page: the id of a row in the middle of the visible ones. */
function findMiddleRow() {
  const { top, height } = document.querySelector('.hits').getBoundingClientRect()
  const isInMiddle = (row) => row.getBoundingClientRect().top > top + height / 2
  return [...document.querySelectorAll('.hits .row[id]')].sort((a, b) => Number(a.ariaRowIndex) - Number(b.ariaRowIndex)).find(isInMiddle)?.id
}

/** The Back button returns to the row and the scroll position in a long list. The drawer shows the selected row. */
async function checkPositionAfterBack(page, origin) {
  await search(page, origin, 'kind:pod sort:name,cluster')
  const total = await readTotal(page)
  const frames = await page.evaluate(scroll, { by: 20 * ROW_HEIGHT, maxFrames: 60, height: total * ROW_HEIGHT })
  assert.ok(frames.rendered < MAX_RENDERED_ROWS, `${frames.rendered} rows are rendered`)
  // Rows that are still being loaded have no link.
  await page.waitForFunction(() => [...document.querySelectorAll('.hits .row[id]')].every((row) => row.querySelector('[data-column=name] a')))
  const scrollTop = () => page.locator('.hits').evaluate((grid) => grid.scrollTop)
  const before = await scrollTop()
  assert.ok(before > 100 * ROW_HEIGHT, `scrolled to ${before}`)
  const link = page.locator(`#${await page.evaluate(findMiddleRow)} [data-column=name] a`)
  const name = await link.textContent()
  await link.click()
  await page.getByRole('heading', { name }).waitFor()
  await page.goBack()
  const active = page.locator('.hits .row.active [data-column=name]')
  await active.filter({ hasText: name }).waitFor()
  const after = await scrollTop()
  assert.ok(Math.abs(after - before) < ROW_HEIGHT, `scrolled to ${before}, and to ${after} after Back`)
  await page.keyboard.press('Space')
  await peek(page).getByRole('heading', { name }).waitFor()
  await page.keyboard.press('j')
  await active.filter({ hasNotText: name }).waitFor()
  await peek(page).getByRole('heading', { name: await active.textContent() }).waitFor()
  await page.keyboard.press('Escape')
  await peek(page).waitFor({ state: 'detached' })
}

/** The button Select all is disabled, with a reason, for too many results. Otherwise it selects the results of all pages, and each is checked with a dry run. */
async function checkSelection(page, origin) {
  const q = 'kind:pod ns:default label:app=many cluster:member1'
  await search(page, origin, 'kind:pod')
  const disabled = page.getByRole('button', { name: 'Select all', disabled: true })
  await disabled.waitFor()
  assert.match(await disabled.getAttribute('title'), /At most 100 results/)
  await search(page, origin, q)
  await page.getByRole('button', { name: 'Select all', disabled: false }).click()
  await page.getByRole('status').getByText(`${REPLICAS} results selected`).waitFor()
  await page.getByRole('button', { name: 'Delete…' }).click()
  const dialog = page.getByRole('dialog', { name: `Delete ${REPLICAS} objects` })
  await dialog.locator('tr[data-state=accepted]').nth(REPLICAS - 1).waitFor()
  await dialog.getByRole('textbox', { name: `Type ${REPLICAS} to confirm` }).waitFor()
  await assertAccessible(page)
  await page.keyboard.press('Escape')
  await dialog.waitFor({ state: 'detached' })
  assert.equal(await count(page, q), REPLICAS)
}

/** Pods in the same state are one node of the topology. A click on it searches for them. */
async function checkTopology(page, origin, replicas) {
  await page.goto(`${origin}/object?${new URLSearchParams({ cluster: '@control-plane', apiVersion: 'apps/v1', resource: 'deployments', ...METADATA, tab: 'topology' })}`)
  const tree = page.getByRole('tree', { name: 'Topology of many' })
  const group = tree.getByRole('treeitem', { name: `Pod ${replicas} × Running` })
  await group.nth(MEMBERS.length - 1).waitFor()
  const nodes = await tree.getByRole('treeitem').count()
  assert.ok(nodes <= MAX_TREE_NODES, `${nodes} nodes`)
  await assertAccessible(page)
  await group.first().click()
  await page.waitForURL(/\/search\?/)
  await page.getByText(new RegExp(`^${replicas} objects in`)).waitFor()
}

/** Checks all flows on a signed-in page of a fleet with about this number of pods. */
export async function checkManyPods(page, origin, pods) {
  await createDeployment(page)
  await checkTyping(page, origin, pods)
  await checkFacets(page, origin)
  await checkPositionAfterBack(page, origin)
  await checkSelection(page, origin)
  await checkTopology(page, origin, REPLICAS)
  await api(page, 'PATCH', `${DEPLOYMENTS}/many`, { spec: { replicas: SCALED_REPLICAS } })
  await waitForRunning(page, SCALED_REPLICAS)
  await checkTopology(page, origin, SCALED_REPLICAS)
  await deleteDeployment(page)
}

if (isMain(import.meta)) {
  const [address, pods] = process.argv.slice(2)
  await runSignedIn(address, (page, origin) => checkManyPods(page, origin, Number(pods)))
}
