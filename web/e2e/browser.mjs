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

/** True for requests that list all objects of a kind from the control plane's own API, which can be arbitrarily many. */
function isList({ pathname, searchParams }) {
  const list = /^\/(api\/v1|apis\/(?!search\.crowsnest\.io)[^/]+\/[^/]+)(\/namespaces\/[^/]+)?\/[a-z]+$/.test(pathname)
  return list && !searchParams.has('limit')
}

/**
 * Opens a page. Its errors, its unbounded lists, and its requests to origins other than its own and those in `elsewhere` are added to `problems`.
 * `contextOptions` are Playwright's options of the browser context.
 */
async function openPage(browser, origin, problems, elsewhere = [], contextOptions = {}) {
  // Other origins are test servers with self-signed certificates.
  const context = await browser.newContext({ viewport: VIEWPORT, ignoreHTTPSErrors: elsewhere.length > 0, ...contextOptions })
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
    const address = new URL(request.url())
    if (![origin, ...elsewhere].includes(address.origin)) problems.push(`request to another origin: ${address}`)
    if (request.method() === 'GET' && isList(address)) problems.push(`list without a limit: ${address}`)
  })
  return page
}

/** A page of another user in the same browser, with separate cookies and storage. */
export async function openPageInOwnContext(page, origin, problems) {
  return openPage(page.context().browser(), origin, problems)
}

/** True for the error that the browser logs when a request to one of these members fails because it does not respond. */
function isOutageOf(members, problem) {
  return /status of 50[234]\b/.test(problem) && members.some((member) => problem.includes(`/clusters/${encodeURIComponent(member)}/proxy/`))
}

/**
 * Walks through pages in a separate browser. Errors that a page logs, and requests to other origins, fail the walk unless they are
 * accepted by `isExpectedProblem`, or are failed requests to one of `stoppedMembers`; a failed walk leaves a screenshot. `flags` are flags of Chromium,
 * `contextOptions` Playwright's options of the browser context.
 */
export async function walk(address, steps, { pictures, elsewhere, isExpectedProblem = () => false, stoppedMembers = [], flags = [], contextOptions } = {}) {
  const browser = await chromium.launch({
    executablePath: process.env.CROWSNEST_CHROMIUM ?? '/usr/bin/chromium',
    args: [...FLAGS, ...flags],
  })
  const { origin } = new URL(address)
  const problems = []
  const page = await openPage(browser, origin, problems, elsewhere, contextOptions)
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

/** True if a module is the entry point of node, and not imported by another module. */
export const isMain = (meta) => process.argv[1] === fileURLToPath(meta.url)

/** Opens an address with a token, as `crowsnest up` prints it, and confirms the sign-in. */
export async function signInByLink(page, address) {
  await page.goto(address)
  await page.getByRole('button', { name: /^Sign in as / }).click()
}

/** A walk that starts signed in, with the address that `crowsnest up` prints. */
export async function walkSignedIn(address, steps, options) {
  await walk(
    address,
    async (page, origin, problems) => {
      await signInByLink(page, address)
      await page.getByRole('combobox', { name: 'Search all clusters' }).waitFor()
      await steps(page, origin, problems)
    },
    options,
  )
}

/** Chooses a preference in the account menu, by the label of its list. */
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

/** In the page: cluster names that are shown without the colour and shape of the cluster. */
function findNamesWithoutMark() {
  const elements = []
  const texts = document.createTreeWalker(document.querySelector('main') ?? document.body, NodeFilter.SHOW_TEXT)
  while (texts.nextNode()) {
    const { data, parentElement: at } = texts.currentNode
    // Options have no icons; queries, commands and manifests are text; an object may have the name of a cluster.
    const plain = at.closest('option, code, pre, .query, .why, .editor, [data-column=name]')
    if (/^(m(ember)?\d+|control plane|控制面)$/.test(data.trim()) && !plain && !at.closest('.cluster, g')?.querySelector('svg')) elements.push(at.outerHTML.slice(0, 160))
  }
  return elements
}

/** Fails if the page violates a WCAG 2.2 AA rule that axe-core can detect, or identifies a cluster by its name only. */
export async function assertAccessible(page) {
  assert.deepEqual(await page.evaluate(findNamesWithoutMark), [], `clusters at ${page.url()}`)
  // Evaluated through the browser's protocol, because the page's policy forbids such a script.
  await page.evaluate(`${await readFile(AXE, 'utf8')};undefined`)
  const violations = await page.evaluate(async (tags) => {
    const { violations } = await window.axe.run(document, { runOnly: { type: 'tag', values: tags }, resultTypes: ['violations'] })
    return violations.map(({ id, help, nodes }) => `${id} (${help}): ${nodes.slice(0, 5).map(({ html }) => html.slice(0, 160)).join('; ')}`)
  }, WCAG_AA)
  assert.deepEqual(violations, [], `${page.url()} is not accessible`)
}

/** A request with the page's session; unexpected responses fail. */
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

/** Waits for a condition that the page does not show. */
export async function waitUntil(description, holds) {
  const end = Date.now() + 60_000
  while (!(await holds())) {
    if (Date.now() > end) throw new Error(`timed out waiting for ${description}`)
    await new Promise((done) => setTimeout(done, 250))
  }
}

/** Removes the errors of requests to members that did not respond during a check. */
export function removeOutages(problems, members) {
  const others = problems.filter((problem) => !isOutageOf(members, problem))
  problems.splice(0, problems.length, ...others)
}

/** The browser logs each error response; those that a check expects are removed. */
export function removeExpected(problems, pattern) {
  const others = problems.filter((problem) => !pattern.test(problem))
  problems.splice(0, problems.length, ...others)
}
