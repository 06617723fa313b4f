// The fleet and propagation views: problems, explanations, previews, and changes.
// Run by quickstart.mjs, or alone: node e2e/propagation.mjs <address with token> <folder for screenshots>
// The fleet has the Deployment default/web with its policy and override, as created by tests/tests/quickstart.rs.
import assert from 'node:assert/strict'
import { join } from 'node:path'
import { checkUnresponsiveMember, checkOneNamespace } from './partial-access.mjs'
import { checkSuspension, deleteSuspended } from './topology.mjs'
import { assertAccessible, api, removeExpected, isMain, paste, setPreference, waitUntil, runSignedIn } from './browser.mjs'

const WEB = 'apiVersion=apps%2Fv1&kind=Deployment&namespace=default&name=web'
const POLICIES = '/apis/policy.karmada.io/v1alpha1/namespaces/default'
const CLUSTERS = '/apis/cluster.karmada.io/v1alpha1/clusters'
const REBALANCERS = '/apis/apps.karmada.io/v1alpha1/workloadrebalancers'

/** Checks all views on a signed-in page. `problems` is the list to which `runInBrowser` adds the errors that the page logs. */
export async function checkPropagation(page, origin, pictures, problems) {
  const saveScreenshot = (name) => page.screenshot({ path: join(pictures, `propagation-${name}.png`), fullPage: true })
  await page.goto(origin)
  await page.getByRole('navigation', { name: 'Main' }).getByRole('link', { name: 'Fleet', exact: true }).click()
  await checkOverview(page, origin, saveScreenshot)
  const visit = async (step, picture) => {
    await step(page, origin, problems)
    await assertAccessible(page)
    if (picture) await saveScreenshot(picture)
  }
  await visit(checkClusterGroups)
  await visit(checkCluster, 'cluster')
  await visit(checkNodes)
  await visit(checkEvents, 'events')
  await visit(checkJoinPage)
  await visit(checkPolicies)
  await visit(checkBindings)
  await visit(checkExplanation, 'why')
  await visit(checkTopology, 'topology')
  await visit(checkSuspension, 'suspended')
  await deleteSuspended(page)
  await visit(checkDrift, 'drift')
  await checkDraft(page, origin, problems, saveScreenshot)
  await checkConcurrentChange(page, origin, problems)
  await visit(checkDeletion)
  await visit(checkFailover, 'failover')
  await visit(checkQuotas, 'quotas')
  await visit(checkRebalance, 'rebalance')
  await checkPalette(page, origin)
  await checkLanguages(page, origin, problems, saveScreenshot)
  await checkOneNamespace(page, origin, pictures, problems)
  if (process.env.CROWSNEST_BINARY) await checkUnresponsiveMember(page, origin, problems, saveScreenshot)
}

const heading = (page, name) => page.getByRole('heading', { level: 1, name })
const table = (page, name) => page.getByRole('table', { name })

async function checkOverview(page, origin, saveScreenshot) {
  await heading(page, 'Fleet').waitFor()
  const rows = table(page, 'Clusters').locator('tr[data-cluster]')
  await rows.nth(2).waitFor()
  const row = page.locator('tr[data-cluster=member1]')
  await row.getByText('✓ Ready').waitFor()
  // The capacity is shown as text, not only by colour, with the age of the data.
  await row.getByRole('meter', { name: 'CPU requested, member1' }).waitFor()
  assert.match(await row.getByRole('meter').first().getAttribute('aria-valuetext'), /of .*%/)
  await row.getByText(/\d+s ago/).waitFor()
  await page.getByText('3 of 3 ready').waitFor()
  // A cluster has the same colour and shape in all views.
  const marks = () =>
    page.locator('[data-cluster] .cluster').evaluateAll((elements) => Object.fromEntries(elements.map((element) => [element.textContent, element.querySelector('svg').getAttribute('fill') + element.querySelector('path').getAttribute('d')])))
  const overviewMarks = await marks()
  assert.equal(new Set(Object.values(overviewMarks)).size, 3)
  await page.goto(origin)
  await page.locator('article[data-cluster]').nth(2).waitFor()
  assert.deepEqual(await marks(), overviewMarks)
  await page.goBack()
  await row.getByText('✓ Ready').waitFor()
  assert.match(await row.textContent(), /v1\.\d+\.\d+/)
  // Each problem in the list is the result of a query. This one finds bindings that fit no cluster.
  const nowhere = { metadata: { name: 'nowhere' } }
  await api(page, 'POST', `${POLICIES}/propagationpolicies`, buildPolicy('nowhere', 'ConfigMap', 'v1', ['nowhere']))
  await api(page, 'POST', '/api/v1/namespaces/default/configmaps', { apiVersion: 'v1', kind: 'ConfigMap', ...nowhere })
  const problem = table(page, 'Problems').locator('tr[data-problem=unscheduled]')
  await problem.waitFor()
  await assertAccessible(page)
  await saveScreenshot('fleet')
  await problem.getByRole('link', { name: 'Unscheduled bindings' }).click()
  await page.waitForURL(/is%3Aunscheduled/)
  await page.locator('.hits .row', { hasText: 'nowhere-configmap' }).waitFor()
  await api(page, 'DELETE', '/api/v1/namespaces/default/configmaps/nowhere')
  await api(page, 'DELETE', `${POLICIES}/propagationpolicies/nowhere`)
  await page.goto(`${origin}/fleet`)
  await row.getByRole('link', { name: 'member1' }).click()
  await page.waitForURL(`${origin}/cluster/member1`)
}

/** Clusters can be grouped. The URL contains the grouping and the collapsed groups; groups can be collapsed with the keyboard. */
async function checkClusterGroups(page, origin) {
  await page.goto(`${origin}/fleet`)
  await page.getByRole('combobox', { name: 'Group by' }).selectOption('Region')
  await page.waitForURL((url) => url.searchParams.get('group') === 'region')
  const group = table(page, 'Clusters').locator('tbody[data-group]').first()
  const rows = group.locator('tr[data-cluster]')
  await rows.first().waitFor()
  await group.getByText(/^\d+ of \d+ ready$/).waitFor()
  await assertAccessible(page)
  await group.getByRole('button', { expanded: true }).press('Enter')
  await page.waitForURL((url) => url.searchParams.has('collapsed'))
  await rows.first().waitFor({ state: 'detached' })
  await page.reload()
  await group.getByRole('button', { expanded: false }).waitFor()
  assert.equal(await rows.count(), 0)
  await page.getByRole('button', { name: 'Expand all' }).click()
  await rows.first().waitFor()
}

async function checkCluster(page, origin, problems) {
  await page.goto(`${origin}/cluster/member3`)
  await heading(page, 'member3').waitFor()
  await page.locator('tr[data-condition=Ready]').getByText('ClusterReady').waitFor()
  await table(page, 'Capacity').getByRole('meter', { name: 'cpu', exact: true }).waitFor()
  await table(page, 'Nodes').locator('tr[data-node]').first().waitFor()
  await table(page, 'Nodes').getByRole('meter', { name: /^CPU requested in / }).first().waitFor()
  await table(page, 'Nodes').getByRole('meter', { name: /^memory requested in / }).first().waitFor()
  await page.getByRole('list', { name: /^CPU requested of nodes/ }).getByRole('link', { name: /: [\d.]+ of [\d.]+ CPU \(\d+ %\)$/ }).first().waitFor()
  await page.getByRole('combobox', { name: 'Nodes by' }).selectOption('Pods')
  await page.getByRole('list', { name: /^Pods of nodes/ }).getByRole('link', { name: /: \d+ of \d+ pods \(\d+ %\)$/ }).first().waitFor()
  await page.getByRole('link', { name: 'Bindings with this cluster' }).waitFor()
  await page.getByText(/kinds in \d+ groups and versions/).click()
  await page.getByRole('searchbox', { name: /Filter kinds/ }).fill('deployment')
  await page.locator('.facts').getByRole('link', { name: 'Deployment', exact: true }).waitFor()
  // Cordon and uncordon.
  await page.getByRole('button', { name: 'Cordon', exact: true }).click()
  await page.getByRole('dialog').getByRole('button', { name: 'Cordon' }).click()
  await page.getByRole('button', { name: 'Uncordon' }).waitFor()
  await page.getByText('cluster.karmada.io/unschedulable:NoSchedule', { exact: true }).waitFor()
  await page.getByRole('button', { name: 'Uncordon' }).click()
  await page.getByRole('dialog').getByRole('button', { name: 'Uncordon' }).click()
  await page.getByRole('button', { name: 'Cordon', exact: true }).waitFor()
  // An invalid taint is refused with the control plane's message; a valid one is added and removed.
  await page.getByRole('button', { name: 'Edit taints' }).click()
  const dialog = page.getByRole('dialog', { name: 'Taints of member3' })
  await dialog.getByRole('button', { name: 'Add a taint' }).click()
  await dialog.getByRole('textbox', { name: 'Key' }).fill('no key')
  await dialog.getByRole('button', { name: 'Save' }).click()
  await dialog.getByRole('alert').waitFor()
  removeExpected(problems, /422/)
  await dialog.getByRole('textbox', { name: 'Key' }).fill('reserved')
  await dialog.getByRole('textbox', { name: 'Value' }).fill('ops')
  await dialog.getByRole('combobox', { name: 'Effect' }).selectOption('NoSchedule')
  await dialog.getByRole('button', { name: 'Save' }).click()
  await page.getByText('reserved=ops:NoSchedule', { exact: true }).waitFor()
  await page.getByRole('button', { name: 'Edit taints' }).click()
  await dialog.getByRole('button', { name: 'Remove reserved' }).click()
  await dialog.getByRole('button', { name: 'Save' }).click()
  await page.getByText('No taints.').waitFor()
  // If another field of the cluster changes between the page's read and its write, the browser logs a 409, and the page retries the write.
  removeExpected(problems, /409/)
  // The button opens a draft in which the cluster is drained.
  await page.getByRole('button', { name: 'What if it was drained…' }).click()
  await page.waitForURL(/\/plan\?.*name=member3.*#draft=/)
  // The taint is at the end of the draft; the editor renders visible lines only.
  await editor(page).press('Control+End')
  await editor(page).getByText('NoExecute', { exact: true }).waitFor()
  await page.goBack()
  await heading(page, 'member3').waitFor()
  // The workloads of a lost cluster would stay bound to it, because no ClusterTaintPolicy evicts them.
  await page.getByRole('link', { name: 'What if it was lost…' }).first().click()
  await heading(page, 'If cluster member3 was lost').waitFor()
  await page.getByText('cluster member3 would keep its workloads').waitFor()
  await page.locator('article[data-template=web] tr[data-cluster=member3]:not([data-change=Removed])').first().waitFor()
  await page.getByRole('list', { name: 'Workloads in the cluster' }).getByText('cannot be placed elsewhere').waitFor()
  await page.goBack()
  await heading(page, 'member3').waitFor()
  // Before the cluster is unjoined, the page shows which workloads would move.
  await page.getByRole('link', { name: 'Unjoin…' }).click()
  await heading(page, 'If Cluster member3 was deleted').waitFor()
  const web = page.locator('article[data-template=web]')
  await web.locator('tr[data-cluster=member3][data-change=Removed]').waitFor()
  const button = page.getByRole('button', { name: 'Delete permanently' })
  assert.equal(await button.getAttribute('aria-disabled'), 'true')
  await page.goBack()
  await heading(page, 'member3').waitFor()
  await page.locator('tr[data-condition=Ready]').waitFor()
  removeExpected(problems, /409/)
}

async function checkNodes(page, origin) {
  await page.getByRole('link', { name: 'Nodes', exact: true }).click()
  await page.waitForURL(`${origin}/fleet/nodes`)
  await table(page, 'Nodes').locator('tr[data-node]').nth(2).waitFor()
  await page.getByRole('searchbox').fill('cluster:member2')
  await page.keyboard.press('Enter')
  await page.waitForURL(/q=cluster/)
  await page.waitForFunction(() => {
    const rows = [...document.querySelectorAll('tr[data-node]')]
    return rows.length > 0 && rows.every((row) => row.textContent.includes('member2'))
  })
}

async function checkEvents(page, origin) {
  await page.goto(`${origin}/fleet/events`)
  const bars = page.getByRole('img', { name: /Events over time: \d+ warnings, \d+ others/ })
  await bars.waitFor()
  const rows = table(page, 'Events').locator('tbody tr')
  await rows.first().waitFor()
  await page.getByRole('button', { name: /^Scheduled/ }).click()
  await page.waitForURL(/q=reason%3AScheduled/)
  await page.waitForFunction(() => [...document.querySelectorAll('table[aria-label=Events] tbody tr')].every((row) => row.textContent.includes('Scheduled')))
  // A bar selects a time, which the URL contains.
  await page.goto(`${origin}/fleet/events?span=15m`)
  await bars.waitFor()
  await page.locator('.histogram g').last().waitFor()
  const filledBar = page.locator('.histogram g').filter({ has: page.locator('rect.others:not([height="0"])') })
  await filledBar.last().click({ force: true })
  await page.waitForURL(/from=.*to=/)
  await rows.first().waitFor()
  await page.getByRole('button', { name: 'The whole time' }).click()
  await page.waitForURL((url) => !url.searchParams.has('from'))
  await page.getByText('As a table').click()
  await table(page, /Events over time/).locator('tbody tr').nth(29).waitFor()
}

async function checkJoinPage(page, origin) {
  await page.goto(`${origin}/fleet/join`)
  const createButton = page.getByRole('button', { name: 'Create the account and its token' })
  await page.getByRole('textbox').fill('member1')
  await page.waitForFunction(() => document.querySelector('[aria-disabled=true]')?.title.includes('in the fleet already'))
  await page.getByRole('textbox').fill('edge-1')
  await createButton.click()
  const config = page.locator('pre', { hasText: 'kind: Config' })
  await config.waitFor()
  const text = await config.textContent()
  assert.match(text, /server: https:/)
  assert.match(text, /token: \S{100,}/)
  await page.getByText('crowsnest agent --cluster-name edge-1').waitFor()
  await page.getByText('crowsnest join edge-1').waitFor()
  // The account has an agent's permissions and no others; it is deleted again.
  const role = await api(page, 'GET', '/apis/rbac.authorization.k8s.io/v1/clusterroles/crowsnest:agent:edge-1')
  assert.equal(role.rules.length, 5)
  const rbac = '/apis/rbac.authorization.k8s.io/v1'
  for (const path of [`${rbac}/clusterroles`, `${rbac}/clusterrolebindings`, `${rbac}/namespaces/karmada-cluster/roles`, `${rbac}/namespaces/karmada-cluster/rolebindings`]) {
    await api(page, 'DELETE', `${path}/crowsnest:agent:edge-1`)
  }
  await api(page, 'DELETE', '/api/v1/namespaces/karmada-cluster/serviceaccounts/agent-edge-1')
}

async function checkPolicies(page, origin) {
  await page.getByRole('navigation', { name: 'Main' }).getByRole('link', { name: 'Propagation', exact: true }).click()
  await page.waitForURL(`${origin}/steer`)
  await table(page, 'Policies').locator('tr[data-policy="default/web"]').nth(1).waitFor()
  await page.getByRole('combobox', { name: 'Kind' }).selectOption('PropagationPolicy')
  await page.waitForURL(/kind=PropagationPolicy/)
  await page.locator('tr[data-policy="default/web"]', { hasText: 'PropagationPolicy' }).getByRole('link', { name: 'web', exact: true }).click()
  await page.waitForURL(/\/policy\?/)
  await page.locator('tr[data-binding=web-deployment]').getByRole('link', { name: /Deployment default\/web/ }).waitFor()
  // The editor renders only the lines on the screen.
  await page.locator('.editor').scrollIntoViewIfNeeded()
  await page.locator('.editor .cm-content').getByText('resourceSelectors', { exact: true }).waitFor()
  await assertAccessible(page)
  await page.locator('tr[data-binding=web-deployment]').getByRole('link', { name: /Deployment default\/web/ }).click()
  await page.waitForURL(/tab=placement/)
}

/** All propagated objects, and a query that filters them. */
async function checkBindings(page, origin) {
  await page.goto(`${origin}/steer/bindings`)
  const rows = table(page, 'Bindings').locator('tr[data-binding]')
  const web = page.locator('tr[data-binding=web-deployment]')
  for (const member of ['member1', 'member2', 'member3']) await web.getByRole('link', { name: `${member} × 2` }).waitFor()
  await page.getByRole('searchbox').fill('name:nosuch*')
  await page.keyboard.press('Enter')
  await page.waitForURL(/q=name/)
  await rows.first().waitFor({ state: 'detached' })
  await page.goBack()
  await web.getByRole('link', { name: 'Deployment default/web' }).click()
  await page.waitForURL(/tab=placement/)
}

async function checkExplanation(page, origin) {
  await page.goto(`${origin}/why?${WEB}`)
  await table(page, 'Policies that select it').locator('tr[data-outcome=Claimed], tr[data-outcome=Chosen]').getByText('won').waitFor()
  // A policy for all Deployments is less precise than one by name; the page shows this.
  const { spec, ...lesser } = buildPolicy('lesser', 'Deployment', 'apps/v1', ['member1'])
  const resourceSelectors = [{ apiVersion: 'apps/v1', kind: 'Deployment' }]
  await api(page, 'POST', `${POLICIES}/propagationpolicies`, { ...lesser, spec: { ...spec, resourceSelectors } })
  const lostPolicy = table(page, 'Policies that select it').locator('tr', { hasText: 'PropagationPolicy default/lesser' })
  await lostPolicy.getByText('lost').waitFor()
  assert.match(await lostPolicy.locator('td').last().textContent(), /\w{3,}/)
  await api(page, 'DELETE', `${POLICIES}/propagationpolicies/lesser`)
  const clusters = table(page, 'Current scheduling result')
  await clusters.locator('tr[data-cluster=member2]').getByText('✓ fits').waitFor()
  assert.match(await clusters.locator('tr[data-cluster=member2] td').nth(1).textContent(), /^\d+$/)
  await clusters.locator('tr[data-cluster=member1]').getByText(/nodes|models|summary/).waitFor()
  await table(page, 'Targets').locator('tr[data-target=member2]').getByText('✓ applied').waitFor()
  // The fields that the override changes.
  const override = page.locator('section[data-override=member2]')
  await override.getByText('nginx:1.25').waitFor()
  await override.getByText('nginx:1.27').waitFor()
  await page.getByText('crowsnest explain deployments.apps/web -n default').waitFor()
  // A rejected cluster shows the filter plugin that rejected it.
  await api(page, 'PATCH', `${CLUSTERS}/member1`, { spec: { taints: [{ key: 'kept-out', effect: 'NoSchedule' }] } })
  await api(page, 'POST', `${POLICIES}/propagationpolicies`, buildPolicy('settings', 'ConfigMap', 'v1', ['member1', 'member2']))
  await api(page, 'POST', '/api/v1/namespaces/default/configmaps', { apiVersion: 'v1', kind: 'ConfigMap', metadata: { name: 'settings' }, data: { colour: 'red' } })
  await page.goto(`${origin}/why?apiVersion=v1&kind=ConfigMap&namespace=default&name=settings`)
  await clusters.locator('tr[data-cluster=member1]').getByText('✗ TaintToleration').waitFor()
  await clusters.locator('tr[data-cluster=member3]').getByText('✗ ClusterAffinity').waitFor()
  await table(page, 'Targets').locator('tr[data-target=member2]').getByText('✓ applied').waitFor()
}

function buildPolicy(name, kind, apiVersion, clusterNames) {
  return {
    apiVersion: 'policy.karmada.io/v1alpha1',
    kind: 'PropagationPolicy',
    metadata: { name, namespace: 'default' },
    spec: { resourceSelectors: [{ apiVersion, kind, name }], placement: { clusterAffinity: { clusterNames } } },
  }
}

async function checkTopology(page, origin) {
  await page.goto(`${origin}/topology?${WEB}`)
  const tree = page.getByRole('tree', { name: 'Topology of web' })
  const items = tree.getByRole('treeitem')
  await tree.locator('[data-kind=Pod]').nth(5).waitFor()
  assert.equal(await tree.locator('[data-kind=Cluster]').count(), 3)
  // The tree is one tab stop; arrow keys navigate, Enter opens.
  assert.equal(await tree.locator('[tabindex="0"]').count(), 1)
  await items.first().focus()
  for (const key of ['ArrowRight', 'ArrowRight', 'ArrowRight', 'ArrowDown', 'ArrowRight', 'ArrowRight']) await page.keyboard.press(key)
  assert.match(await page.evaluate(() => document.activeElement.getAttribute('aria-label')), /Deployment 2\/2 .*web$/)
  await page.keyboard.press('Enter')
  await page.waitForURL(/\/object\?cluster=member2.*deployments/)
  await page.goBack()
  await tree.locator('[data-kind=Pod]').first().waitFor()
  assert.equal(await tree.locator('[data-kind=PropagationPolicy]').count(), 1)
  // If there are no problems, only the template is shown.
  await page.getByRole('checkbox', { name: 'Problems only' }).check()
  await page.waitForURL(/only=problems/)
  await tree.locator('[data-kind=Pod]').first().waitFor({ state: 'detached' })
  assert.equal(await items.count(), 1)
  await page.getByRole('checkbox', { name: 'Problems only' }).uncheck()
  await tree.locator('[data-kind=Pod]').first().waitFor()
  await page.getByRole('button', { name: /member3/ }).click()
  await page.getByText('1 more cluster is collapsed').waitFor()
  // The URL contains the expanded clusters.
  await page.reload()
  await page.getByText('1 more cluster is collapsed').waitFor()
}

async function checkDrift(page, origin) {
  await page.goto(`${origin}/drift?${WEB}&cluster=member2`)
  await page.getByRole('heading', { name: /Drift in member2/ }).waitFor()
  await page.getByText('In sync').waitFor()
  await page.getByText(/fields? that only the member has/).click()
  await page.locator('tr[data-path]').first().waitFor()
  // Changes in a member are reverted at once, so the response with the live object and its field manager is changed instead.
  const liveObjectUrl = /clusters\/member1\/proxy\/apis\/apps\/v1\/namespaces\/default\/deployments\/web$/
  await page.route(liveObjectUrl, async (route) => {
    const response = await route.fetch()
    const object = await response.json()
    object.spec.replicas = 9
    object.metadata.managedFields = [
      ...(object.metadata.managedFields ?? []).map((entry) => {
        if (entry.fieldsV1?.['f:spec']) delete entry.fieldsV1['f:spec']['f:replicas']
        return entry
      }),
      { manager: 'somebody', operation: 'Update', fieldsV1: { 'f:spec': { 'f:replicas': {} } } },
    ]
    await route.fulfill({ response, json: object })
  })
  await page.getByRole('navigation', { name: 'Cluster', exact: true }).getByRole('link', { name: 'member1' }).click()
  const row = page.locator('tr[data-path="spec.replicas"]')
  await row.getByText('somebody').waitFor()
  assert.deepEqual(await row.locator('td code').allTextContents(), ['2', '9'])
  await page.getByText('Diff of whole manifests').click()
  await page.locator('.editor .cm-changedLine').first().waitFor()
  await page.unroute(liveObjectUrl)
}

const editor = (page) => page.getByRole('textbox', { name: 'Draft' })

async function replaceDraft(page, text) {
  await editor(page).click()
  await page.keyboard.press('Control+a')
  await paste(editor(page), text)
}

const DRAFT = `apiVersion: policy.karmada.io/v1alpha1
kind: PropagationPolicy
metadata:
  name: drafted
  namespace: default
spec:
  resourceSelectors:
  - apiVersion: v1
    kind: ConfigMap
    name: drafted
  placement:
    clusterAffinity:
      clusterNames: [member2, member3]
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: drafted
  namespace: default
data:
  colour: green
`

async function checkDraft(page, origin, problems, saveScreenshot) {
  await page.goto(`${origin}/plan?new=PropagationPolicy`)
  await editor(page).getByText('PropagationPolicy', { exact: true }).waitFor()
  const apply = page.getByRole('button', { name: 'Apply', exact: true })
  // An unknown field is marked at its line before anything is stored.
  await replaceDraft(page, DRAFT.replace('clusterAffinity:', 'clusterAfinity:'))
  await page.getByRole('alert').getByText(/clusterAfinity/).waitFor()
  assert.equal(await apply.getAttribute('aria-disabled'), 'true')
  assert.match(await apply.getAttribute('title'), /refuse/)
  await page.locator('.cm-lint-marker-error').first().waitFor()
  await page.getByRole('button', { name: 'line 12' }).click()
  assert.match(await page.evaluate(() => document.activeElement.shadowRoot.querySelector('.cm-activeLine').textContent), /clusterAfinity/)
  removeExpected(problems, /40[0-9]|422|500/)
  // Invalid YAML is also marked.
  await replaceDraft(page, 'spec: [')
  await page.getByRole('alert').getByText(/line 1/).waitFor()
  await assertAccessible(page)
  // Completion from the control plane's OpenAPI.
  await replaceDraft(page, 'apiVersion: policy.karmada.io/v1alpha1\nkind: PropagationPolicy\nspec:\n  resourceS')
  await page.keyboard.press('Control+Space')
  await page.locator('.cm-tooltip-autocomplete').getByText('resourceSelectors', { exact: true }).click()
  await editor(page).getByText('resourceSelectors').waitFor()
  await page.keyboard.press('Escape')
  removeExpected(problems, /40[0-9]|422|500/)
  // Preview: no cluster before, two clusters after, with their manifests.
  await replaceDraft(page, DRAFT)
  await page.getByText('The control plane accepts all 2 (dry run).').waitFor()
  await page.getByRole('button', { name: 'What if…' }).click()
  const planned = page.locator('article[data-template=drafted]')
  for (const member of ['member2', 'member3']) await planned.locator(`tr[data-cluster=${member}][data-change=Added]`).waitFor()
  assert.equal(await planned.locator('tr[data-cluster=member1][data-change=Added]').count(), 0)
  await assertAccessible(page)
  await saveScreenshot('plan')
  await planned.locator('tr[data-cluster=member2]').getByRole('button', { name: 'Manifest' }).click()
  await page.getByRole('dialog').locator('.cm-content').getByText('colour').waitFor()
  await page.keyboard.press('Escape')
  // The preview stored nothing.
  await api(page, 'GET', `${POLICIES}/propagationpolicies/drafted`, undefined, [404])
  removeExpected(problems, /404/)
  await apply.click()
  await page.getByRole('status').getByRole('link', { name: 'PropagationPolicy default/drafted' }).waitFor()
  await waitUntil('the binding to have two clusters', async () => {
    const binding = await api(page, 'GET', '/apis/work.karmada.io/v1alpha2/namespaces/default/resourcebindings/drafted-configmap', undefined, [200, 404])
    return (binding.spec?.clusters ?? []).length === 2
  })
  removeExpected(problems, /404/)
  await page.getByRole('status').getByRole('link', { name: 'PropagationPolicy default/drafted' }).click()
  await page.waitForURL(/\/policy\?/)
}

async function checkConcurrentChange(page, origin, problems) {
  await page.goto(`${origin}/policy?kind=PropagationPolicy&namespace=default&name=drafted`)
  await page.getByRole('link', { name: 'Edit…' }).click()
  await editor(page).getByText('resourceVersion', { exact: true }).waitFor()
  const text = await editor(page).evaluate((content) => content.innerText)
  assert.match(text, /member3/)
  // The preview shows the clusters that an edited policy would add and remove.
  const { resourceVersion, labels } = (await api(page, 'GET', `${POLICIES}/propagationpolicies/drafted`)).metadata
  const edited = DRAFT.split('---')[0].replace('[member2, member3]', '[member1, member2]').replace('  namespace: default', `  namespace: default\n  labels: ${JSON.stringify(labels)}\n  resourceVersion: "${resourceVersion}"`)
  await api(page, 'PATCH', `${CLUSTERS}/member1`, { spec: { taints: null } })
  await replaceDraft(page, edited)
  await page.getByText('The control plane accepts it (dry run).').waitFor()
  await page.getByRole('button', { name: 'What if…' }).click()
  const planned = page.locator('article[data-template=drafted]')
  await planned.locator('tr[data-cluster=member1][data-change=Added]').waitFor()
  await planned.locator('tr[data-cluster=member3][data-change=Removed]').waitFor()
  await page.getByRole('button', { name: 'Apply', exact: true }).click()
  await page.getByRole('status').getByRole('link', { name: /drafted/ }).waitFor()
  // A version that was stored after the draft was read is not overwritten.
  await replaceDraft(page, edited.replace('member2', 'member3'))
  await page.getByRole('alert').getByText(/409/).waitFor()
  removeExpected(problems, /409/)
}

async function checkDeletion(page, origin, problems) {
  await page.goto(`${origin}/policy?kind=PropagationPolicy&namespace=default&name=drafted`)
  await page.getByRole('link', { name: 'Delete…' }).click()
  await heading(page, 'If PropagationPolicy default/drafted was deleted').waitFor()
  await page.locator('article[data-template=drafted]').waitFor()
  const button = page.getByRole('button', { name: 'Delete permanently' })
  assert.match(await button.getAttribute('title'), /Type its name/)
  await page.getByRole('textbox', { name: 'Type drafted to delete it' }).fill('drafted')
  await button.click()
  await page.getByText('PropagationPolicy drafted has been deleted').waitFor()
  await waitUntil('the deletion of the policy', async () => (await api(page, 'GET', `${POLICIES}/propagationpolicies/drafted`, undefined, [200, 404])).code === 404)
  await api(page, 'DELETE', '/api/v1/namespaces/default/configmaps/drafted')
  await api(page, 'DELETE', '/api/v1/namespaces/default/configmaps/settings')
  await api(page, 'DELETE', `${POLICIES}/propagationpolicies/settings`)
  removeExpected(problems, /404/)
}

/** The response with the bindings is generated, so that the displayed values do not depend on the run. */
async function checkFailover(page, origin) {
  const evictingBindingsUrl = /v1alpha1\/export\?.*is%3Aevicting/
  const task = { fromCluster: 'member1', purgeMode: 'Gracefully', replicas: 2, reason: 'TaintUntolerated', producer: 'TaintManager', gracePeriodSeconds: 600 }
  const binding = {
    apiVersion: 'work.karmada.io/v1alpha2',
    kind: 'ResourceBinding',
    metadata: { name: 'web-deployment', namespace: 'default' },
    spec: {
      resource: { apiVersion: 'apps/v1', kind: 'Deployment', namespace: 'default', name: 'web' },
      gracefulEvictionTasks: [{ ...task, message: 'no healthy replacement: 0/3 clusters are available', creationTimestamp: new Date().toISOString() }],
    },
  }
  await page.route(evictingBindingsUrl, (route) => route.fulfill({ body: `${JSON.stringify(binding)}\n`, contentType: 'application/jsonl' }))
  await page.goto(`${origin}/steer/failover`)
  const row = page.locator('tr[data-evicting=member1]')
  await row.getByText('no healthy replacement').waitFor()
  await row.getByText(/left/).waitFor()
  await page.locator('[data-breaker=calm]').getByText('All 3 ready').waitFor()
  await page.getByRole('heading', { name: 'Clusters that are doubted or being removed' }).waitFor()
  await page.unroute(evictingBindingsUrl)
}

async function checkQuotas(page, origin) {
  await api(page, 'POST', `${POLICIES}/federatedresourcequotas`, {
    apiVersion: 'policy.karmada.io/v1alpha1',
    kind: 'FederatedResourceQuota',
    metadata: { name: 'team', namespace: 'default' },
    spec: { overall: { cpu: '8', memory: '16Gi' }, staticAssignments: [{ clusterName: 'member1', hard: { cpu: '4' } }] },
  })
  await page.goto(`${origin}/steer/quotas`)
  const card = page.locator('[data-quota="default/team"]')
  const bar = card.getByRole('meter', { name: 'team memory' })
  await bar.waitFor()
  assert.match(await bar.getAttribute('aria-valuetext'), /of 16Gi/)
  await card.getByText('member1').waitFor()
  await page.getByRole('heading', { name: 'Bindings rejected by a quota' }).waitFor()
  await page.getByText('No binding was rejected by a quota.').waitFor()
  // The response with the rejected binding is generated, so that the displayed values do not depend on the run.
  const rejectedBindingsUrl = /v1alpha1\/export\?.*reason%3AQuotaExceeded/
  const message = 'requested cpu=10, used cpu=0, limited cpu=8'
  const binding = {
    apiVersion: 'work.karmada.io/v1alpha2',
    kind: 'ResourceBinding',
    metadata: { name: 'web-deployment', namespace: 'default' },
    spec: { resource: { apiVersion: 'apps/v1', kind: 'Deployment', namespace: 'default', name: 'web' } },
    status: { conditions: [{ type: 'Scheduled', status: 'False', reason: 'QuotaExceeded', message, lastTransitionTime: new Date().toISOString() }] },
  }
  await page.route(rejectedBindingsUrl, (route) => route.fulfill({ body: `${JSON.stringify(binding)}\n`, contentType: 'application/jsonl' }))
  await page.locator('tr[data-rejected=web]').getByText(message).waitFor()
  await page.unroute(rejectedBindingsUrl)
  await api(page, 'DELETE', `${POLICIES}/federatedresourcequotas/team`)
}

async function checkRebalance(page, origin) {
  await page.goto(`${origin}/steer/rebalance`)
  const create = page.getByRole('button', { name: 'Create' })
  assert.match((await create.getAttribute('title')) ?? '', /Select a workload/)
  await page.getByRole('checkbox', { name: 'Deployment default/web' }).check()
  await page.getByText('1 workload selected').waitFor()
  await page.getByRole('textbox', { name: 'Name' }).fill('again')
  await page.getByRole('button', { name: 'What if…' }).click()
  await page.locator('article[data-template=web]').waitFor()
  await create.click()
  await page.getByText('again has been created').waitFor()
  await page.locator('tr[data-rebalancer=again]').getByText('Successful').waitFor()
  await api(page, 'DELETE', `${REBALANCERS}/again`)
}

async function checkPalette(page, origin) {
  const findEntry = async (text) => {
    await page.keyboard.press('Control+k')
    await page.getByRole('dialog').getByRole('combobox').fill(text)
    await page.getByRole('dialog').getByRole('option').first().waitFor()
  }
  await page.goto(`${origin}/steer`)
  await heading(page, 'Policies').waitFor()
  await findEntry('quotas')
  await page.keyboard.press('Enter')
  await page.waitForURL(`${origin}/steer/quotas`)
  await findEntry('member2')
  await page.getByRole('option', { name: /member2\s*cluster/ }).click()
  await page.waitForURL(`${origin}/cluster/member2`)
  assert.equal(await page.getByRole('navigation', { name: 'Main' }).getByRole('link', { name: 'Fleet', exact: true }).getAttribute('aria-current'), 'page')
}

async function checkLanguages(page, origin, problems, saveScreenshot) {
  await page.goto(`${origin}/why?${WEB}`)
  await setPreference(page, 'Language', 'zh-CN')
  await page.getByRole('heading', { name: '选择它的策略' }).waitFor()
  await setPreference(page, '主题', 'dark')
  await page.locator('html[data-theme=dark]').waitFor()
  await assertAccessible(page)
  await saveScreenshot('why-dark-zh')
  for (const path of ['/fleet', '/steer', '/plan?new=OverridePolicy', `/topology?${WEB}`]) {
    await page.goto(origin + path)
    await page.locator('main h1').waitFor()
    await assertAccessible(page)
  }
  await setPreference(page, '语言', 'en')
  await setPreference(page, 'Theme', 'auto')
}

if (isMain(import.meta)) {
  const [address, pictures] = process.argv.slice(2)
  await runSignedIn(address, (page, origin, problems) => checkPropagation(page, origin, pictures, problems), { pictures })
}
