// The position in a log: the lines around a selected line, and new lines that arrive while an earlier part of the log is shown. Called by object.mjs.
// The server's responses are generated, so that the lines do not depend on the run.
import assert from 'node:assert/strict'
import { assertAccessible } from './browser.mjs'

const LOGS = /v1alpha1\/logs\?/
/** Number of lines: more than the page shows at once. */
const LINES = 200
/** Number of lines that are shown before and after a selected one. */
const CONTEXT_LINES = 20
const FIRST_TIME_MS = 1_767_225_600_000

/** Checks the logs of a pod in member1. */
export async function checkLogPosition(page, origin, pod) {
  const open = async (view) => {
    const parameters = new URLSearchParams({ cluster: 'member1', apiVersion: 'v1', resource: 'pods', namespace: 'default', name: pod, tab: 'logs', ...view })
    await page.goto(`${origin}/object?${parameters}`)
    await page.locator('.log .line').first().waitFor()
  }
  const source = { cluster: 'member1', namespace: 'default', pod, container: 'web' }
  await checkNewLines(page, open, source)
  await checkLinesAround(page, open, source)
}

const textOf = (nth) => `line ${nth}`
const lineOf = (page, nth) => page.locator('.log .line', { hasText: new RegExp(`${textOf(nth)}$`) })
const selectedLine = (page, nth) => page.locator('.log .line[aria-selected=true]', { hasText: new RegExp(`${textOf(nth)}$`) })

async function selectFirstLine(page) {
  await page.getByRole('grid', { name: 'Log' }).focus()
  await page.keyboard.press('Home')
}

/** A response with the lines from `first` up to, but excluding, `end` that match `include`. */
function responseWith(source, first, end, include = /./) {
  const numbers = Array.from({ length: end - first }, (_, nth) => first + nth).filter((nth) => include.test(textOf(nth)))
  const line = (nth) => ['line', { ...source, time: new Date(FIRST_TIME_MS + nth * 1_000).toISOString().replace('Z', '000000Z'), text: textOf(nth) }]
  const events = [['joined', source], ...numbers.map(line), ['done', { lines: numbers.length, logs: 1, refused: 0 }]]
  return { body: events.map(([event, data]) => `event: ${event}\ndata: ${JSON.stringify(data)}\n\n`).join(''), contentType: 'text/event-stream' }
}

/** New lines do not change the position while the user reads earlier lines. A button shows their number and scrolls to them. */
async function checkNewLines(page, open, source) {
  let sendNewLines
  const afterScrolling = new Promise((resolve) => (sendNewLines = resolve))
  await page.route(LOGS, async (route) => {
    // The stream ends after the first lines. The page resumes it from the time of the last line.
    const isResumed = new URL(route.request().url()).searchParams.has('sinceTime')
    if (isResumed) await afterScrolling
    await route.fulfill(isResumed ? responseWith(source, LINES, LINES + 3) : responseWith(source, 0, LINES))
  })
  await open({})
  // The end of the log is shown first.
  await lineOf(page, LINES - 1).waitFor()
  await selectFirstLine(page)
  await selectedLine(page, 0).waitFor()
  await page.getByRole('button', { name: 'To the end, and follow', exact: true }).waitFor()
  sendNewLines()
  const toEnd = page.getByRole('button', { name: 'To the end, and follow (3 new lines)' })
  await toEnd.waitFor()
  await selectedLine(page, 0).waitFor()
  await assertAccessible(page)
  await toEnd.click()
  await lineOf(page, LINES + 2).waitFor()
  await page.getByRole('button', { name: /^To the end/ }).waitFor({ state: 'detached' })
  await page.unroute(LOGS)
}

/** Filters stay active, but do not apply to the lines around a selected line; matches in those lines are marked. */
async function checkLinesAround(page, open, source) {
  const middle = LINES / 2
  await page.route(LOGS, (route) => {
    const include = new URL(route.request().url()).searchParams.get('include')
    return route.fulfill(responseWith(source, 0, LINES, include === null ? undefined : new RegExp(include)))
  })
  await open({ follow: 'false', include: `${textOf(middle)}$` })
  assert.equal(await page.locator('.log .line').count(), 1)
  await selectFirstLine(page)
  await page.getByRole('region', { name: 'Selected line' }).getByRole('button', { name: 'Lines around it' }).click()
  const around = page.getByRole('region', { name: 'Lines around it' })
  for (const nth of [middle - CONTEXT_LINES, middle + CONTEXT_LINES]) await around.getByText(textOf(nth), { exact: true }).waitFor()
  assert.equal(await around.getByRole('listitem').count(), 2 * CONTEXT_LINES + 1)
  assert.equal(await around.locator('[aria-current=true]').textContent(), textOf(middle))
  assert.deepEqual(await around.locator('mark').allTextContents(), [textOf(middle)])
  await selectedLine(page, middle).waitFor()
  assert.equal(await page.locator('.log .line').count(), 1)
  assert.ok(new URL(page.url()).searchParams.has('include'), 'the URL has lost the filter')
  await assertAccessible(page)
  await page.unroute(LOGS)
}
