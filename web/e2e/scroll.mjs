// Scrolls to the end of a result of 100,000 rows, and checks the page's memory and the duration of each frame.
// As part of the quickstart, or alone: node e2e/scroll.mjs <address with token>
import assert from 'node:assert/strict'
import { isMain, walkSignedIn } from './browser.mjs'

const ROWS = 100_000
const ROW = 28
const HEAP = 150 << 20
/** Limit of rows in the document. */
const RENDERED = 120
/** Limit of the CPU time per frame of the page's thread while scrolling with a wheel, in milliseconds: twice a frame at 60 per second, for slow machines. */
const WORK = 33
/** Limit for frames of any scroll distance, as a multiple: the number of rendered rows is bounded. */
const MORE = 3

/** Generated responses of the server to a query with this number of hits. */
export const respondWithHits = (total) => (route) => {
  const address = new URL(route.request().url())
  const from = Number(address.searchParams.get('cursor') ?? 0)
  const to = Math.min(total, from + Number(address.searchParams.get('limit')))
  const hits = Array.from({ length: to - from }, (_, nth) => ({
    cluster: `member${(nth % 300) + 1}`,
    apiVersion: 'v1',
    kind: 'Pod',
    resource: 'pods',
    namespace: `team-${nth % 40}`,
    name: `checkout-${from + nth}-5d9c7b6f4-x${nth}`,
    uid: `00000000-0000-0000-0000-${String(from + nth).padStart(12, '0')}`,
    status: 'Running',
    ready: '1/1',
    restarts: nth % 7,
    node: `node-${nth % 100}`,
    images: [`registry.example.com/shop/checkout:${nth % 20}`],
    created: '2026-01-01T00:00:00Z',
    matched: [{ field: 'name', text: `checkout-${from + nth}-5d9c7b6f4-x${nth}`, marks: [[0, 8]] }],
  }))
  const done = { total, totalRelation: 'eq', tookMs: 1, seq: 1, ...(to < total && { cursor: String(to) }) }
  if (from > 0) return route.fulfill({ json: { hits, ...done } })
  const body = [['facets', {}], ['matches', hits], ['done', done]].map(([event, data]) => `event: ${event}\ndata: ${JSON.stringify(data)}\n\n`).join('')
  return route.fulfill({ body, contentType: 'text/event-stream' })
}

/** In the page: scrolls by a number of pixels per frame, for a number of frames or to the end. */
export async function scroll({ by, most, height }) {
  const grid = document.querySelector('.hits')
  const times = []
  let rendered = 0
  let frames = 0
  while (times.length < most && grid.scrollTop + grid.clientHeight < height) {
    const before = performance.now()
    const at = grid.scrollTop
    grid.scrollTop += by
    await new Promise(requestAnimationFrame)
    frames += 1
    rendered = Math.max(rendered, grid.querySelectorAll('.row').length)
    // At the end of the loaded rows, wait for the next page.
    if (grid.scrollTop !== at) times.push(performance.now() - before)
  }
  times.sort((a, b) => a - b)
  return { rendered, frames, median: times[times.length >> 1], p95: times[Math.floor(times.length * 0.95)] }
}

export async function checkManyRows(page, origin) {
  const many = /v1alpha1\/query\?.*many-rows/
  await page.route(many, respondWithHits(ROWS))
  await page.goto(`${origin}/search?q=many-rows`)
  await page.getByText(`${ROWS.toLocaleString('en')} objects in`).waitFor()
  const browser = await page.context().newCDPSession(page)
  // CPU time of the page's thread, without drawing and other load.
  await browser.send('Performance.enable', { timeDomain: 'threadTicks' })
  const worked = async () => {
    const { metrics } = await browser.send('Performance.getMetrics')
    return Object.fromEntries(metrics.map(({ name, value }) => [name, value * 1_000]))
  }
  const scrolled = async (how, by, bound, most = Infinity) => {
    const before = await worked()
    const frames = await page.evaluate(scroll, { by, most, height: ROWS * ROW })
    const after = await worked()
    const work = (name) => (after[name] - before[name]) / frames.frames
    const durations = ['TaskDuration', 'ScriptDuration', 'RecalcStyleDuration', 'LayoutDuration'].map((name) => work(name).toFixed(1))
    console.log(`${how}: ${durations[0]} ms of work a frame (script ${durations[1]}, styles ${durations[2]}, layout ${durations[3]}); ${frames.median.toFixed(1)} ms from frame to frame (95 %: ${frames.p95.toFixed(1)}); ${frames.rendered} rows rendered`)
    assert.ok(work('TaskDuration') < bound, `${how}: ${work('TaskDuration')} ms of work a frame, of ${bound}`)
    assert.ok(frames.rendered < RENDERED, `${how}: ${frames.rendered} rows are rendered at a time`)
    return work('TaskDuration')
  }
  // As with a wheel, as with a finger, and to the end.
  const slowly = await scrolled('by four rows a frame', 4 * ROW, WORK, 120)
  await scrolled('by twenty rows a frame', 20 * ROW, MORE * slowly, 120)
  await scrolled('by two hundred rows a frame', 200 * ROW, MORE * slowly)
  const last = page.locator('.hits .row', { hasText: `checkout-${ROWS - 1}-` })
  await last.waitFor()
  await assertDocumentOrder(page)
  await browser.send('HeapProfiler.collectGarbage')
  const { usedSize } = await browser.send('Runtime.getHeapUsage')
  console.log(`${(usedSize / (1 << 20)).toFixed(1)} MiB of heap`)
  assert.ok(usedSize < HEAP, `${usedSize} bytes of heap`)
  // Back at the top, whose pages were dropped.
  await page.evaluate((top) => (document.querySelector('.hits').scrollTop = top), 310 * ROW)
  await page.locator('.hits .row', { hasText: 'checkout-310-' }).waitFor()
  await assertDocumentOrder(page)
  await page.unroute(many)
}

/** At rest, rows are in document order, for screen readers and selections. */
async function assertDocumentOrder(page) {
  await page.waitForFunction(() => {
    const rows = [...document.querySelectorAll('.hits .row')].map((row) => Number(row.getAttribute('aria-rowindex')))
    return rows.length > 2 && rows.slice(2).every((row, nth) => row === rows[nth + 1] + 1)
  })
}

if (isMain(import.meta)) await walkSignedIn(process.argv[2], checkManyRows)
