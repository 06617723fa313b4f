// The browser of the whole-system tests, with checks for errors, requests to other origins, and accessibility.
import assert from 'node:assert/strict'
import { readFile } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { chromium } from 'playwright-core'

const AXE = createRequire(import.meta.url).resolve('axe-core/axe.min.js')
/** WCAG success criteria that pages must meet. */
const WCAG_AA = ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa']

const VIEWPORT = { width: 1400, height: 850 }
const FLAGS = ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync']

/** True for requests that list all objects of a kind from the control plane's own API without a limit. There can be arbitrarily many. */
function isUnlimitedList({ pathname, searchParams }) {
  const isListPath = /^\/(api\/v1|apis\/(?!search\.crowsnest\.io)[^/]+\/[^/]+)(\/namespaces\/[^/]+)?\/[a-z]+$/.test(pathname)
  return isListPath && !searchParams.has('limit')
}

/**
 * Opens a page. Adds to `problems`: errors in the page's console, list requests without a limit, and requests to origins other than `origin`
 * and `otherOrigins`. `contextOptions` are Playwright's options of the browser context.
 */
async function openPage(browser, origin, problems, otherOrigins = [], contextOptions = {}) {
  // Other origins are test servers with self-signed certificates.
  const context = await browser.newContext({ viewport: VIEWPORT, ignoreHTTPSErrors: otherOrigins.length > 0, ...contextOptions })
  const page = await context.newPage()
  page.setDefaultTimeout(60_000)
  page.on('pageerror', (error) => problems.push(`page error: ${error.message}`))
  page.on('console', (message) => {
    // The browser logs the 401 that leads to the sign-in page; all other errors are failures.
    if (message.type() === 'error' && !message.text().includes('status of 401')) {
      problems.push(`console: ${message.text()} ${message.location().url}`)
    }
  })
  page.on('request', (request) => {
    const url = new URL(request.url())
    if (![origin, ...otherOrigins].includes(url.origin)) problems.push(`request to another origin: ${url}`)
    if (request.method() === 'GET' && isUnlimitedList(url)) problems.push(`list request without a limit: ${url}`)
  })
  return page
}

/** Opens a page in the same browser with separate cookies and storage, for another user. */
export async function openPageInOwnContext(page, origin, problems) {
  return openPage(page.context().browser(), origin, problems)
}

/** True for the error that the browser logs when a request to one of these members fails because it does not respond. */
function isOutageOf(members, problem) {
  return /status of 50[234]\b/.test(problem) && members.some((member) => problem.includes(`/clusters/${encodeURIComponent(member)}/proxy/`))
}

/**
 * Runs `steps` on a page in a new browser. Fails if a step fails, or if the page logs an error, sends a list request without a limit, or sends
 * a request to an origin other than its own and `otherOrigins`. Problems that `isExpectedProblem` accepts and failed requests to
 * `stoppedMembers` are ignored. After a failure, a screenshot is saved in the folder `pictures`. `flags` are flags of Chromium,
 * `contextOptions` Playwright's options of the browser context.
 */
export async function runInBrowser(address, steps, { pictures, otherOrigins, isExpectedProblem = () => false, stoppedMembers = [], flags = [], contextOptions } = {}) {
  const browser = await chromium.launch({
    executablePath: process.env.CROWSNEST_CHROMIUM ?? '/usr/bin/chromium',
    args: [...FLAGS, ...flags],
  })
  const { origin } = new URL(address)
  const problems = []
  const page = await openPage(browser, origin, problems, otherOrigins, contextOptions)
  try {
    await steps(page, origin, problems)
    assert.deepEqual(problems.filter((problem) => !isExpectedProblem(problem) && !isOutageOf(stoppedMembers, problem)), [])
  } catch (error) {
    for (const problem of problems) console.error(problem)
    if (pictures) await page.screenshot({ path: join(pictures, 'failed.png') }).catch(() => undefined)
    throw error
  } finally {
    await browser.close()
  }
}

/** True if a module is the script that node runs, and not imported by another module. */
export const isMain = (meta) => process.argv[1] === fileURLToPath(meta.url)

/** Opens a URL with a token, as printed by `crowsnest up`, and confirms the sign-in. */
export async function signInByLink(page, address) {
  await page.goto(address)
  await page.getByRole('button', { name: /^Sign in as / }).click()
}

/** Like `runInBrowser`, but signs in before the first step. `address` is the URL that `crowsnest up` prints. */
export async function runSignedIn(address, steps, options) {
  await runInBrowser(
    address,
    async (page, origin, problems) => {
      await signInByLink(page, address)
      await page.getByRole('combobox', { name: 'Search all clusters' }).waitFor()
      await steps(page, origin, problems)
    },
    options,
  )
}

/** Selects an option of a preference in the account menu. `name` is the label of the preference. */
export async function setPreference(page, name, option) {
  await page.locator('.who').click()
  await page.getByRole('combobox', { name, exact: true }).selectOption(option)
  await page.keyboard.press('Escape')
}

/** Signs out through the account menu. */
export async function signOut(page) {
  await page.locator('.who').click()
  await page.getByRole('button', { name: 'Sign out' }).click()
}

/** Pastes text at the cursor of an editor. */
export async function paste(content, text) {
  await content.evaluate((element, text) => {
    const clipboardData = new DataTransfer()
    clipboardData.setData('text/plain', text)
    element.dispatchEvent(new ClipboardEvent('paste', { clipboardData, bubbles: true, cancelable: true, composed: true }))
  }, text)
}

/** Runs in the page: finds cluster names that are shown without the colour and shape of the cluster. */
function findNamesWithoutMark() {
  const elements = []
  const texts = document.createTreeWalker(document.querySelector('main') ?? document.body, NodeFilter.SHOW_TEXT)
  while (texts.nextNode()) {
    const { data, parentElement: element } = texts.currentNode
    // Options have no icons; queries, commands and manifests are text; an object may have the name of a cluster.
    const needsNoMark = element.closest('option, code, pre, .query, .why, .editor, [data-column=name]')
    if (/^(m(ember)?\d+|control plane|控制面)$/.test(data.trim()) && !needsNoMark && !element.closest('.cluster, g')?.querySelector('svg')) elements.push(element.outerHTML.slice(0, 160))
  }
  return elements
}

/** Fails if the page violates a WCAG 2.2 AA rule that axe-core can detect, or identifies a cluster by its name only. */
export async function assertAccessible(page) {
  assert.deepEqual(await page.evaluate(findNamesWithoutMark), [], `cluster names without the colour and shape of the cluster at ${page.url()}`)
  // Evaluated through the DevTools protocol, because the page's content security policy forbids such a script.
  await page.evaluate(`${await readFile(AXE, 'utf8')};undefined`)
  const violations = await page.evaluate(async (tags) => {
    const { violations } = await window.axe.run(document, { runOnly: { type: 'tag', values: tags }, resultTypes: ['violations'] })
    return violations.map(({ id, help, nodes }) => `${id} (${help}): ${nodes.slice(0, 5).map(({ html }) => html.slice(0, 160)).join('; ')}`)
  }, WCAG_AA)
  assert.deepEqual(violations, [], `${page.url()} is not accessible`)
}

/** Sends a request with the page's session. Fails if the status of the response is not one of `expectedStatuses`. */
export async function api(page, method, path, body, expectedStatuses = [200, 201, 202]) {
  const response = await page.evaluate(
    async ([method, path, body]) => {
      const type = method === 'PATCH' ? 'application/merge-patch+json' : 'application/json'
      const headers = { 'X-Crowsnest-Client': 'web', 'Content-Type': type }
      const response = await fetch(path, { method, headers, ...(body && { body: JSON.stringify(body) }) })
      return { code: response.status, text: await response.text() }
    },
    [method, path, body],
  )
  assert.ok(expectedStatuses.includes(response.code), `${method} ${path}: ${response.code} ${response.text}`)
  return JSON.parse(response.text)
}

/** Polls until a condition that the page does not show is true. `description` completes "timed out waiting for". */
export async function waitUntil(description, holds) {
  const end = Date.now() + 60_000
  while (!(await holds())) {
    if (Date.now() > end) throw new Error(`timed out waiting for ${description}`)
    await new Promise((done) => setTimeout(done, 250))
  }
}

/** Removes the problems caused by requests to members that do not respond. */
export function removeOutages(problems, members) {
  const others = problems.filter((problem) => !isOutageOf(members, problem))
  problems.splice(0, problems.length, ...others)
}

/** Removes the problems that match `pattern`: the browser also logs the error responses that a check expects. */
export function removeExpected(problems, pattern) {
  const others = problems.filter((problem) => !pattern.test(problem))
  problems.splice(0, problems.length, ...others)
}
