// The browser of the whole-system tests, and what must not happen in it.
import assert from 'node:assert/strict'
import { readFile } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { chromium } from 'playwright-core'

const AXE = createRequire(import.meta.url).resolve('axe-core/axe.min.js')
/** The success criteria that a page has to meet. */
const WCAG_AA = ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa']

const VIEWPORT = { width: 1400, height: 850 }

/** Whether all objects of a kind are asked for, of the control plane's own API: there may be any number of them. */
function isList({ pathname, searchParams }) {
  const list = /^\/(api\/v1|apis\/(?!search\.crowsnest\.io)[^/]+\/[^/]+)(\/namespaces\/[^/]+)?\/[a-z]+$/.test(pathname)
  return list && !searchParams.has('limit')
}

/** A page whose errors, requests for whole lists, and requests to anywhere but its address and `elsewhere`, are added to `problems`. */
async function opened(browser, origin, problems, elsewhere = []) {
  // Other places are tests' own, with certificates nobody knows.
  const context = await browser.newContext({ viewport: VIEWPORT, ignoreHTTPSErrors: elsewhere.length > 0 })
  const page = await context.newPage()
  page.setDefaultTimeout(60_000)
  page.on('pageerror', (error) => problems.push(`page error: ${error.message}`))
  page.on('console', (message) => {
    // The browser logs the 401 that asks for a sign-in; everything else is ours to answer for.
    if (message.type() === 'error' && !message.text().includes('status of 401')) {
      problems.push(`console: ${message.text()} ${message.location().url}`)
    }
  })
  page.on('request', (request) => {
    const address = new URL(request.url())
    if (![origin, ...elsewhere].includes(address.origin)) problems.push(`outside request: ${address}`)
    if (request.method() === 'GET' && isList(address)) problems.push(`whole list: ${address}`)
  })
  return page
}

/** A page of somebody else, in the same browser, that keeps nothing in common with the first one. */
export async function somebodyElse(page, origin, problems) {
  return opened(page.context().browser(), origin, problems)
}

/**
 * Walks through pages in a browser of its own. Errors that a page logs, and requests to anywhere else, fail the walk unless they are
 * `fine`; what was there to be seen when it failed is a picture.
 */
export async function walk(address, steps, { pictures, elsewhere, fine = () => false } = {}) {
  const browser = await chromium.launch({
    executablePath: process.env.CROWSNEST_CHROMIUM ?? '/usr/bin/chromium',
    args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
  })
  const { origin } = new URL(address)
  const problems = []
  const page = await opened(browser, origin, problems, elsewhere)
  try {
    await steps(page, origin, problems)
    assert.deepEqual(problems.filter((problem) => !fine(problem)), [])
  } catch (error) {
    for (const problem of problems) console.error(problem)
    if (pictures) await page.screenshot({ path: join(pictures, 'failed.png') }).catch(() => undefined)
    throw error
  } finally {
    await browser.close()
  }
}

/** Whether a file of walks is the one that node was started with, and not a part of another. */
export const isMain = (meta) => process.argv[1] === fileURLToPath(meta.url)

/** Opens an address that has a token, as `crowsnest up` prints it, and agrees to be whom it signs in. */
export async function follow(page, address) {
  await page.goto(address)
  await page.getByRole('button', { name: /^Sign in as / }).click()
}

/** A walk that begins signed in, with the address that `crowsnest up` prints. */
export async function signedIn(address, steps, options) {
  await walk(
    address,
    async (page, origin, problems) => {
      await follow(page, address)
      await page.getByRole('combobox', { name: 'Search all clusters' }).waitFor()
      await steps(page, origin, problems)
    },
    options,
  )
}

/** Puts text where the cursor of an editor is, as the clipboard does. */
export async function paste(content, text) {
  await content.evaluate((element, text) => {
    const clipboardData = new DataTransfer()
    clipboardData.setData('text/plain', text)
    element.dispatchEvent(new ClipboardEvent('paste', { clipboardData, bubbles: true, cancelable: true, composed: true }))
  }, text)
}

/** Names of clusters that stand without their colour and shape. */
function bareNames() {
  const found = []
  const texts = document.createTreeWalker(document.querySelector('main') ?? document.body, NodeFilter.SHOW_TEXT)
  while (texts.nextNode()) {
    const { data, parentElement: at } = texts.currentNode
    // A choice has no pictures; queries, commands and manifests are text; an object may be called as a cluster is.
    const plain = at.closest('option, code, pre, .query, .why, .editor, [data-column=name]')
    if (/^(m(ember)?\d+|control plane|控制面)$/.test(data.trim()) && !plain && !at.closest('.cluster, g')?.querySelector('svg')) found.push(at.outerHTML.slice(0, 160))
  }
  return found
}

/** Fails when what is shown breaks a rule of WCAG 2.2 AA that a program can see, or tells a cluster by its name alone. */
export async function accessible(page) {
  assert.deepEqual(await page.evaluate(bareNames), [], `clusters at ${page.url()}`)
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
