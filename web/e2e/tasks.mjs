// The five main tasks of a new user, each within a limited number of steps. A step is a click, a typed text with Enter, or a key.
// Run by tests/tests/tasks.rs, which prepares the fleet: node e2e/tasks.mjs <address with token> <folder for screenshots>
// With UPDATE_SCREENSHOTS=1, it takes the pictures of docs/UI.md.
import assert from 'node:assert/strict'
import { assertAccessible, runSignedIn } from './browser.mjs'
import { CONTEXT, takePicture } from './pictures.mjs'
import { moveBack, readRestarts, waitForMove, waitForRestarts } from './shop.mjs'

/** A task that starts on the home page. It counts its steps and takes a picture after each. */
class Task {
  constructor(page, name, maxSteps) {
    Object.assign(this, { page, name, maxSteps, steps: 0 })
  }

  /** Performs one action of the user, and waits until the element `effect`, its result, is shown. */
  async step(action, effect) {
    this.steps += 1
    assert.ok(this.steps <= this.maxSteps, `${this.name} takes more than ${this.maxSteps} steps`)
    await action()
    await effect.waitFor()
    await assertAccessible(this.page)
    await takePicture(this.page, `tasks/${this.name}-${this.steps}`)
  }

  click(target, effect) {
    return this.step(() => target.click(), effect)
  }

  /** Fills a field with a text and presses Enter. */
  type(field, text, effect) {
    return this.step(async () => {
      await field.fill(text)
      await field.press('Enter')
    }, effect)
  }
}

const searchBox = (page) => page.getByRole('combobox', { name: 'Search all clusters' })
const row = (page, cluster, name) => page.locator('.hits .row:not(.head)', { has: page.getByText(cluster, { exact: true }) }).filter({ has: page.getByRole('link', { name, exact: true }) })
const resultLink = (page, cluster, name) => row(page, cluster, name).getByRole('link', { name, exact: true })

/** Why does a pod fail, in any cluster? */
async function findFailingPod(page) {
  const task = new Task(page, 'failing-pod', 3)
  const pod = page.locator('.hits').getByRole('link', { name: /^payments-/ })
  await task.click(page.getByRole('region', { name: 'Needs attention' }).getByRole('link', { name: 'Failing pods' }), pod)
  const failures = page.getByRole('region', { name: 'Failures' })
  await task.click(pod, failures.getByText(/exit code 1/))
  await failures.getByText('BackOff', { exact: false }).first().waitFor()
  await failures.getByRole('link', { name: 'Logs' }).waitFor()
  return task
}

/** Why is a Deployment not in the cluster north? */
async function explainAbsence(page) {
  const task = new Task(page, 'not-in-cluster', 2)
  await task.type(searchBox(page), 'kind:deployment name:api', resultLink(page, 'control plane', 'api'))
  const north = page.getByRole('table', { name: 'Placement' }).locator('tr[data-absent=north]')
  await task.click(resultLink(page, 'control plane', 'api'), north.getByText(/untolerated taint \{dedicated=batch:NoSchedule\}/))
  await north.getByText('TaintToleration').waitFor()
  return task
}

/** What changed in the last hour in the namespace shop? */
async function listChanges(page) {
  const task = new Task(page, 'changes', 2)
  const shop = page.getByRole('complementary', { name: 'Facets' }).getByRole('button', { name: /^shop \d/ })
  await page.getByRole('region', { name: 'Recent changes' }).getByText(/^changed \w+ ago$/).first().waitFor()
  await task.click(page.getByRole('link', { name: 'Changed in the last hour' }), shop)
  const histogram = page.getByRole('listbox', { name: /^Results over time/ })
  await task.click(shop, histogram)
  await page.waitForURL((url) => url.searchParams.get('q') === 'kind:workload changed:<1h namespace:shop')
  for (const name of ['api', 'cache', 'payments']) await resultLink(page, 'control plane', name).waitFor()
  const namespaces = await page.locator('.hits .row:not(.head) [data-column=namespace]').allTextContents()
  assert.deepEqual([...new Set(namespaces)], ['shop'])
  return task
}

/** Which workloads use an old image in any cluster? Restarts them; the copies of a template are restarted with it. */
async function restartOldImage(page) {
  const before = await readRestarts(page)
  const task = new Task(page, 'old-image', 4)
  await task.type(searchBox(page), 'kind:deployment,statefulset,daemonset image:redis:6.2', resultLink(page, 'west', 'report'))
  for (const cluster of ['control plane', 'east', 'west']) await resultLink(page, cluster, 'cache').waitFor()
  await task.click(page.getByRole('button', { name: 'Select all' }), page.getByRole('status').getByText('4 results selected'))
  const dialog = page.getByRole('dialog', { name: 'Restart 4 workloads' })
  const count = dialog.getByRole('textbox', { name: 'Type 2 to confirm' })
  await task.click(page.getByRole('button', { name: 'Restart…' }), count)
  assert.equal(await dialog.locator('tr[data-state=covered]').count(), 2)
  await task.type(count, '2', dialog.locator('tr[data-state=done]').nth(1))
  await waitForRestarts(page, before)
  return task
}

/** Moves a Deployment away from the cluster east, after a preview. */
async function moveAway(page) {
  const task = new Task(page, 'move-away', 4)
  await task.type(searchBox(page), 'kind:deployment name:api', resultLink(page, 'control plane', 'api'))
  const link = page.getByRole('link', { name: 'Move away from east…' })
  await task.click(resultLink(page, 'control plane', 'api'), link)
  const plan = page.locator('article[data-template=api]')
  const apply = page.getByRole('button', { name: 'Apply', exact: true, disabled: false })
  await task.step(async () => {
    await link.click()
    await plan.locator('tr[data-cluster=east][data-change=Removed]').waitFor()
    await plan.locator('tr[data-cluster=west][data-change=Changed]').waitFor()
    await plan.scrollIntoViewIfNeeded()
  }, apply)
  await task.click(apply, page.getByRole('status').getByRole('link', { name: 'PropagationPolicy shop/api' }))
  await waitForMove(page)
  await moveBack(page)
  return task
}

const [address, pictures] = process.argv.slice(2)
await runSignedIn(
  address,
  async (page, origin) => {
    for (const perform of [findFailingPod, explainAbsence, listChanges, restartOldImage, moveAway]) {
      await page.goto(origin)
      await page.getByRole('region', { name: 'Needs attention' }).waitFor()
      const { name, steps, maxSteps } = await perform(page)
      console.log(`${name}: ${steps} of at most ${maxSteps} steps`)
    }
  },
  { pictures, contextOptions: CONTEXT },
)
