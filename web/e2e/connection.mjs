// A server that cannot be reached for a while: the page keeps its content, reports the lost connection once, and resumes automatically.
// Run by quickstart.mjs, or alone: node e2e/connection.mjs <address with token>
// The fleet has a Deployment `web` in member1.
import assert from 'node:assert/strict'
import { assertAccessible, isMain, removeExpected, runSignedIn, waitUntil } from './browser.mjs'

const WEB = 'cluster=member1&apiVersion=apps%2Fv1&resource=deployments&namespace=default&name=web'
/** The script of the view of saved searches. It is loaded when the view is opened; retries add a query to its URL. */
const SAVED_SEARCHES_SCRIPT = /\/assets\/Saved-[^/?]*\.js(\?|$)/
/** Errors that the browser and React log for failed requests. Unhandled errors of the page are still failures. */
const NETWORK_ERRORS = /^console: [\s\S]*(net::ERR_|Failed to fetch)/

/** Checks all cases on a signed-in page. `problems` is the list to which `runInBrowser` adds the errors that the page logs. */
export async function checkConnection(page, origin, problems) {
  await checkResults(page, origin)
  await checkOpenObject(page, origin)
  await checkUnreachableServer(page, origin)
  await checkScriptRetry(page, origin)
  await checkScriptAfterReconnection(page, origin)
  removeExpected(problems, NETWORK_ERRORS)
}

const banner = (page) => page.getByRole('status').getByText(/^The server cannot be reached/)
const waitForHits = (page) => page.getByText(/objects? in [\d.]+ ms/).waitFor()
const abort = (route) => route.abort()

async function goOffline(page) {
  await page.context().setOffline(true)
  await banner(page).waitFor()
}

async function goOnline(page) {
  await page.context().setOffline(false)
  await banner(page).waitFor({ state: 'detached' })
}

/** The results stay, and the search continues after the connection is restored. */
async function checkResults(page, origin) {
  await page.goto(`${origin}/search?q=kind%3Apod`)
  await waitForHits(page)
  const rows = page.locator('.hits .row:not(.head)')
  const count = await rows.count()
  assert.ok(count > 0, 'there are no results')
  await goOffline(page)
  assert.equal(await rows.count(), count)
  await assertAccessible(page)
  await goOnline(page)
  await page.getByRole('combobox', { name: 'Search all clusters' }).fill('kind:node')
  await page.waitForURL((url) => url.searchParams.get('q') === 'kind:node')
  await waitForHits(page)
}

/** An open object stays although it cannot be read again, and no view reports the lost connection in addition to the banner. */
async function checkOpenObject(page, origin) {
  await page.goto(`${origin}/object?${WEB}`)
  const heading = page.getByRole('heading', { name: 'Deployment web' })
  const conditions = page.getByRole('table', { name: 'Conditions' })
  await conditions.waitFor()
  const failedRead = page.waitForEvent('requestfailed', (request) => new URL(request.url()).pathname.endsWith('/deployments/web'))
  await goOffline(page)
  await failedRead
  await heading.waitFor()
  await conditions.waitFor()
  assert.equal(await page.locator('main [role=alert]').count(), 0)
  await assertAccessible(page)
  await goOnline(page)
  await heading.waitFor()
  await conditions.waitFor()
}

/** If the server is unreachable while the browser is online, no event reports its return, so the page polls the server. */
async function checkUnreachableServer(page, origin) {
  await page.goto(`${origin}/fleet`)
  const row = page.locator('tr[data-cluster=member1]')
  await row.waitFor()
  await page.route('**/*', abort)
  await banner(page).waitFor()
  await row.waitFor()
  await page.unroute('**/*')
  await banner(page).waitFor({ state: 'detached' })
}

const openSavedSearches = (page) => page.getByRole('navigation', { name: 'Main' }).getByRole('link', { name: 'Saved searches' }).click()
const savedHeading = (page) => page.getByRole('heading', { level: 1, name: 'Saved searches' })
const loadFailure = (page, hasText = 'This part of the page could not be loaded') => page.getByRole('main').getByRole('alert').filter({ hasText })

/** If a script cannot be loaded, a button retries it, any number of times. The rest of the page stays. */
async function checkScriptRetry(page, origin) {
  await page.goto(`${origin}/fleet`)
  // An active route also disables the browser's cache, which may have the file.
  await page.route(SAVED_SEARCHES_SCRIPT, abort)
  await openSavedSearches(page)
  await loadFailure(page).waitFor()
  await page.getByRole('navigation', { name: 'Main' }).getByRole('link', { name: 'Fleet' }).waitFor()
  await assertAccessible(page)
  await page.evaluate(() => (window.isSameDocument = true))
  for (let attempt = 1; attempt <= 2; attempt += 1) {
    const failedRequest = page.waitForEvent('requestfailed', (request) => request.url().includes(`?retry=${attempt}`))
    await page.getByRole('button', { name: 'Retry' }).click()
    await failedRequest
    await page.getByRole('button', { name: 'Reload the page' }).waitFor()
  }
  await assertAccessible(page)
  await page.unroute(SAVED_SEARCHES_SCRIPT)
  // The last failed attempt may still be in progress.
  await waitUntil('the view of saved searches', async () => {
    if (await savedHeading(page).isVisible()) return true
    await page.getByRole('button', { name: 'Retry' }).click({ timeout: 1_000 }).catch(() => undefined)
    return false
  })
  await loadFailure(page).waitFor({ state: 'detached' })
  assert.equal(await page.evaluate(() => window.isSameDocument), true)
}

/** A view that is opened while the server cannot be reached is shown as soon as the connection is restored. */
async function checkScriptAfterReconnection(page, origin) {
  await page.goto(`${origin}/fleet`)
  await page.locator('tr[data-cluster=member1]').waitFor()
  await page.route(SAVED_SEARCHES_SCRIPT, abort)
  await goOffline(page)
  await openSavedSearches(page)
  await loadFailure(page, 'as soon as the server can be reached').waitFor()
  await page.unroute(SAVED_SEARCHES_SCRIPT)
  await goOnline(page)
  await savedHeading(page).waitFor()
}

if (isMain(import.meta)) await runSignedIn(process.argv[2], checkConnection)
