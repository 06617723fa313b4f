// Sends each query twice, typed into the search box and in the URL of the search page, and prints the results.
// Run by tests/tests/corpus.rs, which prepares the fleet: node e2e/corpus.mjs <address with token> <JSON file with the queries>
import assert from 'node:assert/strict'
import { readFile } from 'node:fs/promises'
import { runSignedIn } from './browser.mjs'

const [address, file] = process.argv.slice(2)

/** Waits until the response is complete and all its rows are rendered. */
async function waitForRows(page) {
  await page.waitForFunction(() => {
    const status = document.querySelector('.summary [role=status]')?.textContent ?? 'Searching'
    // `aria-rowcount` includes the header row.
    const rowCount = Number(document.querySelector('.hits')?.getAttribute('aria-rowcount'))
    return !status.startsWith('Searching') && document.querySelectorAll('.hits .row').length >= rowCount
  })
}

/** Shows the column `Kind`, which is hidden for queries that select one kind. */
async function showKind(page) {
  const head = page.getByRole('columnheader', { name: 'Kind', exact: true })
  if ((await head.count()) > 0 || (await page.locator('.hits .row:not(.head)').count()) === 0) return
  await page.getByRole('button', { name: 'Columns', exact: true }).click()
  await page.getByRole('checkbox', { name: 'Kind', exact: true }).check()
  await page.keyboard.press('Escape')
  await head.waitFor()
}

/** Reads the hits, their total number and the notices. */
async function readResults(page) {
  await waitForRows(page)
  await showKind(page)
  await waitForRows(page)
  return page.evaluate(() => {
    // The order of columns depends on the kind, and those without a value are hidden.
    const identity = ['cluster', 'kind', 'namespace', 'name']
    const text = (row, column) => row.querySelector(`[role=gridcell][data-column=${column}]`)?.textContent.trim() ?? ''
    const hits = [...document.querySelectorAll('.hits .row:not(.head)')].map((row) =>
      identity.map((column) => text(row, column)).filter((part) => part !== '').join('/'),
    )
    const status = document.querySelector('.summary [role=status]').textContent
    const total = /^([\d,]+) objects? in [\d.]+ ms$/.exec(status)?.[1]
    if (total === undefined) throw new Error(`unexpected status of the search: ${status}`)
    const notices = [...document.querySelectorAll('.summary .notice')].map((notice) => notice.textContent)
    return { hits, total: Number(total.replaceAll(',', '')), notices }
  })
}

const results = []

async function sendQueries(page, origin) {
  for (const query of JSON.parse(await readFile(file, 'utf8'))) {
    // Start from another page each time, so that no previous result is shown.
    await page.getByRole('link', { name: 'Home', exact: true }).click()
    await page.locator('.summary').waitFor({ state: 'detached' })
    await page.getByRole('combobox', { name: 'Search all clusters' }).fill(query)
    await page.keyboard.press('Enter')
    await page.waitForURL(/\/search\?q=/)
    const typed = await readResults(page)
    await page.goto(`${origin}/search?q=${encodeURIComponent(query)}`)
    const linked = await readResults(page)
    assert.equal(await page.getByRole('combobox', { name: 'Search all clusters' }).inputValue(), query)
    results.push({ typed, linked })
  }
}

// The test has stopped member2, whose objects are expected to be stale.
await runSignedIn(address, sendQueries, { stoppedMembers: ['member2'] })
console.log(JSON.stringify(results))
