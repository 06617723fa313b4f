// The browser of the whole-system tests, and what must not happen in it.
import { chromium } from 'playwright-core'

/** Opens a page at an address; `problems` fills with errors and with requests to anywhere else. */
export async function open(address) {
  const browser = await chromium.launch({
    executablePath: process.env.CROWSNEST_CHROMIUM ?? '/usr/bin/chromium',
    args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
  })
  const problems = []
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
  return { browser, page, problems, origin }
}
