// Sends queries from the search page and prints the results, typed in and by address:
// node e2e/corpus.mjs <address with token> <JSON file with the queries>
import assert from 'node:assert/strict'
import { readFile } from 'node:fs/promises'
import { signedIn } from './browser.mjs'

const [address, file] = process.argv.slice(2)

/** Hits, their number and notices, once the response is complete and all its rows are rendered. */
async function shown(page) {
  await page.waitForFunction(() => {
    const status = document.querySelector('.summary [role=status]')?.textContent ?? 'Searching'
    // Including the header row.
    const wanted = Number(document.querySelector('.hits')?.getAttribute('aria-rowcount'))
    return !status.startsWith('Searching') && document.querySelectorAll('.hits .row').length >= wanted
  })
  return page.evaluate(() => {
    const texts = (root, selector) => [...root.querySelectorAll(selector)].map((element) => element.textContent)
    const hits = [...document.querySelectorAll('.hits .row:not(.head)')].map((row) =>
      texts(row, '[role=gridcell]').slice(0, 4).filter((text) => text !== '').join('/'),
    )
    const status = document.querySelector('.summary [role=status]').textContent
    const total = /^([\d,]+) objects? in [\d.]+ ms$/.exec(status)?.[1]
    if (total === undefined) throw new Error(`it says ${status}`)
    return { hits, total: Number(total.replaceAll(',', '')), remarks: texts(document, '.summary .notice') }
  })
}

const answers = []
await signedIn(address, async (page, origin) => {
  for (const query of JSON.parse(await readFile(file, 'utf8'))) {
    // Start from another page each time, so that no earlier result is left.
    await page.getByRole('link', { name: 'Home', exact: true }).click()
    await page.locator('.summary').waitFor({ state: 'detached' })
    await page.getByRole('combobox', { name: 'Search all clusters' }).fill(query)
    await page.keyboard.press('Enter')
    await page.waitForURL(/\/search\?q=/)
    const typed = await shown(page)
    await page.goto(`${origin}/search?q=${encodeURIComponent(query)}`)
    const linked = await shown(page)
    assert.equal(await page.getByRole('combobox', { name: 'Search all clusters' }).inputValue(), query)
    answers.push({ typed, linked })
  }
})
console.log(JSON.stringify(answers))
