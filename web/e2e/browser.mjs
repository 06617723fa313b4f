// The browser of the whole-system tests, and what must not happen in it.
import { chromium } from 'playwright-core'

/** Opens a page at an address; `problems` fills with errors and with requests to anywhere but there and `elsewhere`. */
export async function open(address, elsewhere = []) {
  const browser = await chromium.launch({
    executablePath: process.env.CROWSNEST_CHROMIUM ?? '/usr/bin/chromium',
    args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
  })
  const problems = []
  const page = await browser.newPage({
    viewport: { width: 1400, height: 850 },
    // Other places are tests' own, with certificates nobody knows.
    ignoreHTTPSErrors: elsewhere.length > 0,
  })
  page.setDefaultTimeout(60_000)
  const origin = new URL(address).origin
  page.on('pageerror', (error) => problems.push(`page error: ${error.message}`))
  page.on('console', (message) => {
    // The browser logs the 401 that asks for a sign-in; everything else is ours to answer for.
    if (message.type() === 'error' && !message.text().includes('401')) {
      problems.push(`console: ${message.text()} ${message.location().url}`)
    }
  })
  page.on('request', (request) => {
    if (![origin, ...elsewhere].includes(new URL(request.url()).origin)) problems.push(`outside request: ${request.url()}`)
  })
  return { browser, page, problems, origin }
}
