// The five main tasks by keyboard: after the page has been loaded, the test uses only `page.keyboard`.
// Run by tests/tests/tasks.rs, which prepares the fleet: node e2e/keyboard.mjs <address with token> <folder for screenshots>
import assert from 'node:assert/strict'
import { runSignedIn } from './browser.mjs'
import { moveBack, readRestarts, waitForMove, waitForRestarts } from './shop.mjs'

/** Maximum number of times that Tab is pressed to reach an element. */
const MAX_TABS = 80
/** Maximum number of times that j is pressed to select a row. */
const MAX_ROWS = 40

/** The element, if it has the focus. */
const ifFocused = (page, element) => element.and(page.locator(':focus'))
const searchBox = (page) => page.getByRole('combobox', { name: 'Search all clusters' })
const grid = (page) => page.getByRole('grid', { name: 'Results' })

/** The row of a result, by cluster and name. */
function result(page, cluster, name) {
  const link = page.getByRole('link', { name, exact: true })
  return grid(page).getByRole('row').filter({ has: page.getByText(cluster, { exact: true }) }).filter({ has: link })
}

/** Presses Tab until an element has the focus. */
async function tabTo(page, element) {
  await element.waitFor()
  for (let presses = 0; (await ifFocused(page, element).count()) === 0; presses += 1) {
    assert.ok(presses < MAX_TABS, `${element} is not reached by pressing Tab ${MAX_TABS} times`)
    await page.keyboard.press('Tab')
  }
}

/** Leaves the search box: the first Escape closes its suggestions, the second one removes the focus. Outside the box, both have no effect. */
async function leaveSearchBox(page) {
  await page.keyboard.press('Escape')
  await page.keyboard.press('Escape')
}

/** Presses /, which focuses the search box in every view, and types a query. */
async function typeQuery(page, text) {
  await leaveSearchBox(page)
  await page.keyboard.press('/')
  await ifFocused(page, searchBox(page)).waitFor()
  await page.keyboard.type(text)
}

/** Waits until the results of a query are shown. */
async function waitForResults(page, q) {
  await page.waitForURL((url) => url.searchParams.get('q')?.trim() === q)
  await page.locator('.hits[aria-busy=false]').waitFor()
}

async function search(page, q) {
  await typeQuery(page, q)
  await page.keyboard.press('Enter')
  await waitForResults(page, q)
}

/** Selects the row of a result by pressing j. The caller ensures that no row is selected yet. */
async function selectRow(page, row) {
  await row.waitFor()
  await leaveSearchBox(page)
  for (let presses = 0; presses < MAX_ROWS; presses += 1) {
    await page.keyboard.press('j')
    await page.locator(`#row-${presses}.active`).waitFor()
    if ((await row.getAttribute('id')) === `row-${presses}`) return
  }
  throw new Error(`${row} is not reached by pressing j ${MAX_ROWS} times`)
}

async function listKeys(page) {
  await leaveSearchBox(page)
  await page.keyboard.press('?')
  const keys = page.getByRole('dialog', { name: 'Keys and query language' })
  await keys.waitFor()
  await page.keyboard.press('Escape')
  await keys.waitFor({ state: 'detached' })
}

/** Why does a pod fail, in any cluster? Tab leads from the search box to the problems of the home page. */
async function findFailingPod(page) {
  await tabTo(page, page.getByRole('region', { name: 'Needs attention' }).getByRole('link', { name: 'Failing pods' }))
  await page.keyboard.press('Enter')
  await page.waitForURL(/\/search\?/)
  await page.locator('.hits[aria-busy=false]').waitFor()
  await selectRow(page, result(page, 'west', /^payments-/))
  await page.keyboard.press('Space')
  await page.getByRole('region', { name: 'Selected result' }).getByRole('heading', { name: /payments-/ }).waitFor()
  await page.keyboard.press('Enter')
  await page.getByRole('heading', { name: /^Pod payments-/ }).waitFor()
  const failures = page.getByRole('region', { name: 'Failures' })
  await failures.getByText(/exit code 1/).waitFor()
  await failures.getByText('BackOff', { exact: false }).first().waitFor()
}

/** Why is a Deployment not in the cluster north? */
async function explainAbsence(page) {
  await search(page, 'kind:deployment name:api')
  await selectRow(page, result(page, 'control plane', 'api'))
  await page.keyboard.press('Enter')
  const reason = /north.*TaintToleration.*untolerated taint \{dedicated=batch:NoSchedule\}/
  await page.getByRole('table', { name: 'Placement' }).getByRole('row', { name: reason }).waitFor()
}

/** Maximum number of repeated requests for suggestions. */
const MAX_ATTEMPTS = 20

/** True if the element is shown within two seconds. */
const isShownSoon = (element) => element.waitFor({ timeout: 2_000 }).then(() => true, () => false)

/** What changed in the last hour in the namespace shop? Tab completes its name. */
async function listChanges(page) {
  await typeQuery(page, 'kind:workload changed:<1h namespace:sh')
  const suggestion = page.getByRole('listbox', { name: 'Suggestions' }).getByRole('option', { name: /^shop/ })
  // A busy server sends no suggestions, so the query is edited to repeat the request.
  for (let attempts = 0; !(await isShownSoon(suggestion)); attempts += 1) {
    assert.ok(attempts < MAX_ATTEMPTS, 'the namespace is not suggested')
    await page.keyboard.press('Backspace')
    await page.keyboard.type('h')
  }
  await page.keyboard.press('Tab')
  await page.keyboard.press('Enter')
  await waitForResults(page, 'kind:workload changed:<1h namespace:shop')
  await page.getByRole('listbox', { name: /^Results over time/ }).waitFor()
  for (const name of ['api', 'cache', 'payments']) await result(page, 'control plane', name).waitFor()
  const namespaces = await grid(page).locator('.row:not(.head) [data-column=namespace]').allTextContents()
  assert.deepEqual([...new Set(namespaces)], ['shop'])
}

/** Which workloads use an old image in any cluster? Restarts them after a dry run and a confirmation. */
async function restartOldImage(page) {
  const before = await readRestarts(page)
  await search(page, 'kind:deployment,statefulset,daemonset image:redis:6.2')
  for (const [cluster, name] of [['control plane', 'cache'], ['east', 'cache'], ['west', 'cache'], ['west', 'report']]) await result(page, cluster, name).waitFor()
  await tabTo(page, page.getByRole('button', { name: 'Select all' }))
  await page.keyboard.press('Enter')
  await page.getByRole('status').getByText('4 results selected').waitFor()
  await tabTo(page, page.getByRole('button', { name: 'Restart…' }))
  await page.keyboard.press('Enter')
  const dialog = page.getByRole('dialog', { name: 'Restart 4 workloads' })
  await tabTo(page, dialog.getByRole('textbox', { name: 'Type 2 to confirm' }))
  assert.equal(await dialog.getByRole('row', { name: /restarted with its template$/ }).count(), 2)
  await page.keyboard.type('2')
  await page.keyboard.press('Enter')
  await dialog.getByRole('row', { name: /\bdone$/ }).nth(1).waitFor()
  await waitForRestarts(page, before)
  await page.keyboard.press('Escape')
  await dialog.waitFor({ state: 'detached' })
}

/** Moves a Deployment away from the cluster east, after a preview. The palette finds it. */
async function moveAway(page) {
  const q = 'kind:deployment name:api'
  await page.keyboard.press('Control+k')
  const palette = page.getByRole('dialog', { name: 'Commands and short queries' })
  await ifFocused(page, palette.getByRole('combobox')).waitFor()
  await page.keyboard.type(q)
  await palette.getByRole('option', { name: q, selected: true }).waitFor()
  await page.keyboard.press('Enter')
  await waitForResults(page, q)
  await selectRow(page, result(page, 'control plane', 'api'))
  await page.keyboard.press('Enter')
  await tabTo(page, page.getByRole('link', { name: 'Move away from east…' }))
  await page.keyboard.press('Enter')
  const plan = page.locator('article[data-template=api]')
  await plan.locator('tr[data-cluster=east][data-change=Removed]').waitFor()
  await plan.locator('tr[data-cluster=west][data-change=Changed]').waitFor()
  await tabTo(page, page.getByRole('button', { name: 'Apply', exact: true, disabled: false }))
  await page.keyboard.press('Enter')
  await page.getByRole('status').getByRole('link', { name: 'PropagationPolicy shop/api' }).waitFor()
  await waitForMove(page)
  await moveBack(page)
}

const [address, pictures] = process.argv.slice(2)
await runSignedIn(
  address,
  async (page, origin) => {
    await page.goto(origin)
    await page.getByRole('region', { name: 'Needs attention' }).waitFor()
    for (const perform of [listKeys, findFailingPod, explainAbsence, listChanges, restartOldImage, moveAway]) await perform(page)
  },
  { pictures },
)
