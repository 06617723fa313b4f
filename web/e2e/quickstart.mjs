// All checks of the quickstart in a real browser, beginning with the first pages that a new user sees. Run by tests/tests/quickstart.rs:
// node e2e/quickstart.mjs <address with token> <folder for screenshots>
import assert from 'node:assert/strict'
import { join } from 'node:path'
import { runSignedIn } from './browser.mjs'
import { checkConnection } from './connection.mjs'
import { checkHome } from './home.mjs'
import { checkObject } from './object.mjs'
import { checkManyRows } from './scroll.mjs'
import { checkShell } from './shell.mjs'
import { checkPropagation } from './propagation.mjs'

/** The first pages of a new user. */
async function checkFirstPages(page) {
  // The home page: all three clusters are ready.
  for (const member of ['member1', 'member2', 'member3']) {
    await page.locator(`[data-cluster="${member}"] .pill.good`).waitFor()
  }
  assert.ok(!page.url().includes('token='), 'the URL still contains the token')
  await page.screenshot({ path: join(pictures, 'fleet.png') })

  // Search: results are streamed; a facet changes the query.
  const box = page.getByRole('combobox', { name: 'Search all clusters' })
  await box.fill('kind:pod label:app=web')
  await page.keyboard.press('Enter')
  await page.waitForURL(/\/search\?q=/)
  await page.getByText(/^6 objects in/).waitFor()
  await page.screenshot({ path: join(pictures, 'search.png') })
  await page.locator('aside').getByRole('button', { name: /^member2 / }).click()
  await page.getByText(/^2 objects in/).waitFor()
  assert.match(await box.inputValue(), /cluster:member2/)

  // The object: YAML, events, logs.
  await page.locator('.row:not(.head) [data-column=name] a').first().click()
  await page.getByRole('heading', { name: /^Pod web-/ }).waitFor()
  await page.getByRole('link', { name: 'YAML' }).click()
  await page.locator('.editor').getByText('apiVersion', { exact: true }).first().waitFor()
  await page.getByRole('link', { name: 'Events' }).click()
  await page.getByRole('cell', { name: 'Scheduled', exact: true }).first().waitFor()
  await page.getByRole('link', { name: 'Logs' }).click()
  await page.locator('.log .line').first().waitFor()
  await page.screenshot({ path: join(pictures, 'logs.png') })
}

const [address, pictures] = process.argv.slice(2)
await runSignedIn(
  address,
  async (page, origin, problems) => {
    await checkFirstPages(page)
    await checkPropagation(page, origin, pictures, problems)
    await checkObject(page, origin, pictures, problems)
    await checkHome(page, origin, pictures)
    await checkShell(page, origin, pictures)
    await checkConnection(page, origin, problems)
    await checkManyRows(page, origin)
  },
  { pictures },
)
