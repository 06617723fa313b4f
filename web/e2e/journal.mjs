// Journals after a member has failed and its workloads have been moved: those of the template, its copy, the cluster, and the whole fleet.
// Run by tests/tests/journal.rs, which prepares the fleet: node e2e/journal.mjs <address with token> <folder for screenshots>
import assert from 'node:assert/strict'
import { join } from 'node:path'
import { assertAccessible, setPreference, runSignedIn } from './browser.mjs'

/** Expected actions of the entries. Each is the cause of the next one; the first is the root cause. */
const CHAIN = ['ClusterFlipped', 'ClusterTainted', 'Evicted', 'Rescheduled']
const WEB = { cluster: '@control-plane', apiVersion: 'apps/v1', resource: 'deployments', namespace: 'shop', name: 'web', tab: 'journal' }

const tableOf = (page, name = 'Placement history') => page.getByRole('table', { name })
const entryOf = (page, action) => tableOf(page).locator(`tr[data-entry=${action}]`).first()

/** Returns the actions in the chain of causes that the row of an entry shows. */
const readCauses = (page, action) => entryOf(page, action).locator('.causes li button').allTextContents()

const [address, pictures] = process.argv.slice(2)

async function checkJournal(page, origin) {
  const table = tableOf(page)
  const entry = (action) => entryOf(page, action)
  const show = (parameters) => page.goto(`${origin}/object?${new URLSearchParams(parameters)}`)

  // The template's journal is ordered by time, so causes precede their effects.
  await show(WEB)
  await entry('Rescheduled').getByText(/Rescheduled from m1:2 to m2:2/).waitFor()
  const actions = (await table.locator('tr[data-entry] th button').allTextContents()).filter((action) => CHAIN.includes(action))
  assert.deepEqual(actions, CHAIN)
  assert.deepEqual(await readCauses(page, 'Rescheduled'), CHAIN.slice(0, -1).reverse())
  await entry('ClusterFlipped').getByText('root cause').waitFor()
  await assertAccessible(page)
  // Each entry has its own URL, and its causes are marked.
  await entry('Rescheduled').getByRole('button', { name: 'Rescheduled', exact: true }).click()
  await page.waitForURL(/entry=/)
  await page.reload()
  await table.locator('tr[aria-current=true][data-entry=Rescheduled]').waitFor()
  assert.equal(await table.locator('tr[data-cause]').count(), CHAIN.length - 1)
  await entry('Rescheduled').getByRole('button', { name: /^Go to ClusterTainted/ }).click()
  await table.locator('tr[aria-current=true][data-entry=ClusterTainted]').waitFor()
  await page.emulateMedia({ colorScheme: 'dark' })
  await assertAccessible(page)
  await page.emulateMedia({ colorScheme: 'light' })
  await page.screenshot({ path: join(pictures, 'journal.png'), fullPage: true })

  // The time around which entries are shown has the syntax of the query language.
  await page.getByRole('textbox', { name: 'Around' }).fill('now-2h')
  await page.getByRole('button', { name: 'Show' }).click()
  await page.waitForURL(/at=now-2h/)
  await page.getByText('There are no entries that you may read.').waitFor()
  await page.getByRole('combobox', { name: '± range' }).selectOption('6h')
  await page.waitForURL(/within=6h/)
  await entry('Rescheduled').waitFor()
  await page.getByRole('button', { name: 'Copy as command' }).click()
  await page.getByText('crowsnest journal deployments.apps/web -n shop --at now-2h --within 6h').waitFor()
  await page.keyboard.press('Escape')
  await page.getByRole('textbox', { name: 'Around' }).fill('tea')
  await page.keyboard.press('Enter')
  await page.getByRole('alert').getByText(/invalid at="tea": expected a time such as 10:05/).waitFor()
  await page.getByRole('button', { name: 'All entries' }).click()
  await entry('Rescheduled').waitFor()

  // Journals of the copy, the binding, and the cluster.
  await show({ ...WEB, cluster: 'm2' })
  await page.getByText('These are the entries of the template of this copy').waitFor()
  await entry('Rescheduled').waitFor()
  await show({ ...WEB, apiVersion: 'work.karmada.io/v1alpha2', resource: 'resourcebindings', name: 'web-deployment' })
  await entry('Rescheduled').waitFor()
  await entry('ClusterFlipped').getByRole('link', { name: 'm1' }).click()
  await page.waitForURL(`${origin}/cluster/m1`)
  await page.getByRole('link', { name: 'Placement history' }).click()
  await page.waitForURL(/tab=journal/)
  await entry('ClusterTainted').waitFor()

  // Journal of the whole fleet, newest first.
  await page.goto(`${origin}/steer/failover`)
  await entry('Rescheduled').waitFor()
  const fleetActions = (await table.locator('tr[data-entry] th button').allTextContents()).filter((action) => CHAIN.includes(action))
  assert.ok(fleetActions.indexOf('Rescheduled') < fleetActions.indexOf('ClusterFlipped'), fleetActions.join())
  assert.deepEqual(await readCauses(page, 'Rescheduled'), CHAIN.slice(0, -1).reverse())
  await assertAccessible(page)
  await page.getByRole('combobox', { name: 'Time' }).selectOption('15m')
  await page.waitForURL(/last=15m/)
  await page.screenshot({ path: join(pictures, 'journal-failover.png'), fullPage: true })
  await setPreference(page, 'Language', 'zh-CN')
  await page.getByRole('table', { name: '放置历史' }).waitFor()
}

// The page of the cluster m1 requests access reviews and metrics from m1, which is stopped. The invalid time is refused with status 400.
await runSignedIn(address, checkJournal, { pictures, stoppedMembers: ['m1'], isExpectedProblem: (problem) => /status of 400/.test(problem) })
