// Walks the first pages in a real browser: node e2e/quickstart.mjs <address with token> <folder for pictures>
import assert from 'node:assert/strict'
import { join } from 'node:path'
import { chromium } from 'playwright-core'

const [address, pictures] = process.argv.slice(2)
const browser = await chromium.launch({
  executablePath: process.env.CROWSNEST_CHROMIUM ?? '/usr/bin/chromium',
  args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
})
const problems = []
try {
  const page = await browser.newPage({ viewport: { width: 1400, height: 850 } })
  page.setDefaultTimeout(60_000)
  const origin = new URL(address).origin
  page.on('pageerror', (error) => problems.push(`page error: ${error.message}`))
  page.on('console', (message) => {
    // The browser logs the 401 that asks for a sign-in; everything else is ours to answer for.
    if (message.type() === 'error' && !message.text().includes('401')) problems.push(`console: ${message.text()}`)
  })
  page.on('request', (request) => {
    if (!request.url().startsWith(origin)) problems.push(`outside request: ${request.url()}`)
  })

  // Fleet: three clusters, live counts.
  await page.goto(address)
  for (const member of ['member1', 'member2', 'member3']) {
    await page.locator(`tr[data-cluster="${member}"] td.good`).waitFor()
  }
  assert.ok(!page.url().includes('token='), 'the token stays in the address')
  await page.screenshot({ path: join(pictures, 'fleet.png') })

  // Search: results stream in; a facet edits the query.
  await page.getByRole('searchbox').fill('kind:pod label:app=web')
  await page.keyboard.press('Enter')
  await page.waitForURL(/\/search\?q=/)
  await page.getByText(/^6 objects in/).waitFor()
  await page.screenshot({ path: join(pictures, 'search.png') })
  await page.locator('aside button', { hasText: 'member2' }).click()
  await page.getByText(/^2 objects in/).waitFor()
  assert.match(await page.getByRole('searchbox').inputValue(), /cluster:member2/)

  // The object: YAML, events, logs.
  await page.locator('.row:not(.head) a').first().click()
  await page.locator('pre.yaml').getByText('containers', { exact: true }).waitFor()
  await page.getByRole('link', { name: 'Events' }).click()
  await page.getByRole('cell', { name: 'Scheduled', exact: true }).first().waitFor()
  await page.getByRole('link', { name: 'Logs' }).click()
  await page.waitForFunction(() => (document.querySelector('pre.log')?.textContent ?? '').length > 20)
  await page.screenshot({ path: join(pictures, 'logs.png') })
  assert.deepEqual(problems, [])
  console.log('1 passed, 0 failed')
} catch (error) {
  for (const problem of problems) console.error(problem)
  throw error
} finally {
  await browser.close()
}
