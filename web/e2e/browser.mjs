// The browser of the whole-system tests, and what must not happen in it.
import assert from 'node:assert/strict'
import { readFile } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { chromium } from 'playwright-core'

const AXE = createRequire(import.meta.url).resolve('axe-core/axe.min.js')
/** The success criteria that a page has to meet. */
const WCAG_AA = ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa']

/** What a page may log as errors for now: answers that a test asks for. */
const toBeRefused = new WeakMap()

/** Does something that the server refuses, which the browser logs as an error. */
export async function refused(page, statuses, something) {
  toBeRefused.set(page, statuses)
  await something()
  toBeRefused.delete(page)
}

/** Opens a page at an address; `problems` fills with errors and with requests to anywhere but there and `elsewhere`. */
export async function open(address, elsewhere = []) {
  const browser = await chromium.launch({
    executablePath: process.env.CROWSNEST_CHROMIUM ?? '/usr/bin/chromium',
    args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
  })
  const problems = []
  const context = await browser.newContext({
    viewport: { width: 1400, height: 850 },
    // Other places are tests' own, with certificates nobody knows.
    ignoreHTTPSErrors: elsewhere.length > 0,
  })
  const page = await context.newPage()
  page.setDefaultTimeout(60_000)
  const origin = new URL(address).origin
  page.on('pageerror', (error) => problems.push(`page error: ${error.message}`))
  page.on('console', (message) => {
    // The browser logs the 401 that asks for a sign-in; everything else is ours to answer for.
    const known = [401, ...(toBeRefused.get(page) ?? [])].some((status) => message.text().includes(`status of ${status}`))
    if (message.type() === 'error' && !known) {
      problems.push(`console: ${message.text()} ${message.location().url}`)
    }
  })
  page.on('request', (request) => {
    if (![origin, ...elsewhere].includes(new URL(request.url()).origin)) problems.push(`outside request: ${request.url()}`)
  })
  return { browser, page, problems, origin }
}

/** Puts text where the cursor of an editor is, as the clipboard does. */
export async function paste(content, text) {
  await content.evaluate((element, text) => {
    const clipboardData = new DataTransfer()
    clipboardData.setData('text/plain', text)
    element.dispatchEvent(new ClipboardEvent('paste', { clipboardData, bubbles: true, cancelable: true, composed: true }))
  }, text)
}

/** Fails when what is shown breaks a rule of WCAG 2.2 AA that a program can see. */
export async function accessible(page) {
  // Evaluated by the browser itself: the page's policy allows no such script.
  await page.evaluate(`${await readFile(AXE, 'utf8')};undefined`)
  const broken = await page.evaluate(async (tags) => {
    const { violations } = await window.axe.run(document, { runOnly: { type: 'tag', values: tags }, resultTypes: ['violations'] })
    return violations.map(({ id, help, nodes }) => `${id} (${help}): ${nodes.slice(0, 5).map(({ html }) => html.slice(0, 160)).join('; ')}`)
  }, WCAG_AA)
  assert.deepEqual(broken, [], `${page.url()} is not accessible`)
}

/** A request with the page's own session; answers other than those that are expected fail. */
export async function api(page, method, path, body, fine = [200, 201, 202]) {
  const answer = await page.evaluate(
    async ([method, path, body]) => {
      const type = method === 'PATCH' ? 'application/merge-patch+json' : 'application/json'
      const headers = { 'X-Crowsnest-Client': 'web', 'Content-Type': type }
      const response = await fetch(path, { method, headers, ...(body && { body: JSON.stringify(body) }) })
      return { code: response.status, text: await response.text() }
    },
    [method, path, body],
  )
  assert.ok(fine.includes(answer.code), `${method} ${path}: ${answer.code} ${answer.text}`)
  return JSON.parse(answer.text)
}

/** The browser logs each answer that is an error; those that a check is about are taken out again. */
export function expected(problems, pattern) {
  const others = problems.filter((problem) => !pattern.test(problem))
  problems.splice(0, problems.length, ...others)
}
