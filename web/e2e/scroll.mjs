// Scrolls to the end of a result of 100,000 rows, and checks the page's memory and its CPU time per frame.
// Run by quickstart.mjs, or alone: node e2e/scroll.mjs <address with token>
import assert from 'node:assert/strict'
import { isMain, runSignedIn } from './browser.mjs'

const ROWS = 100_000
/** Height of a row with compact density, in pixels. */
export const ROW_HEIGHT = 28
const MAX_HEAP_BYTES = 150 << 20
/** Maximum number of rows in the document. */
export const MAX_RENDERED_ROWS = 120
/** Maximum CPU time of the page's main thread per frame while scrolling with a wheel, in milliseconds: the time of two frames at 60 Hz, to allow for slow machines. */
const MAX_FRAME_MS = 33
/** Maximum ratio of the CPU time per frame with a larger scroll distance to that with a wheel. The page renders a limited number of rows per frame. */
const MAX_FRAME_FACTOR = 3

/** Returns a route handler that generates the server's responses to a query with this number of hits. */
export const respondWithHits = (total) => (route) => {
  const { searchParams } = new URL(route.request().url())
  const from = Number(searchParams.get('cursor') ?? 0)
  const to = Math.min(total, from + Number(searchParams.get('limit')))
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

/** Runs in the page: scrolls by a number of pixels per frame, for a number of frames or to the end. */
export async function scroll({ by, maxFrames, height }) {
  const grid = document.querySelector('.hits')
  const times = []
  let rendered = 0
  let frames = 0
  while (times.length < maxFrames && grid.scrollTop + grid.clientHeight < height) {
    const before = performance.now()
    const at = grid.scrollTop
    grid.scrollTop += by
    await new Promise(requestAnimationFrame)
    frames += 1
    rendered = Math.max(rendered, grid.querySelectorAll('.row').length)
    // A frame in which the list cannot scroll waits for the next page and is not measured.
    if (grid.scrollTop !== at) times.push(performance.now() - before)
  }
  times.sort((a, b) => a - b)
  return { rendered, frames, median: times[times.length >> 1], p95: times[Math.floor(times.length * 0.95)] }
}

export async function checkManyRows(page, origin) {
  const manyRows = /v1alpha1\/query\?.*many-rows/
  await page.route(manyRows, respondWithHits(ROWS))
  await page.goto(`${origin}/search?q=many-rows`)
  await page.getByText(`${ROWS.toLocaleString('en')} objects in`).waitFor()
  const cdp = await page.context().newCDPSession(page)
  // `threadTicks` counts the CPU time of the page's main thread, without painting and without other processes.
  await cdp.send('Performance.enable', { timeDomain: 'threadTicks' })
  const readCpuTimes = async () => {
    const { metrics } = await cdp.send('Performance.getMetrics')
    return Object.fromEntries(metrics.map(({ name, value }) => [name, value * 1_000]))
  }
  const measureScroll = async (description, by, maxTaskMs, maxFrames = Infinity) => {
    const before = await readCpuTimes()
    const result = await page.evaluate(scroll, { by, maxFrames, height: ROWS * ROW_HEIGHT })
    const after = await readCpuTimes()
    const perFrame = (name) => (after[name] - before[name]) / result.frames
    const durations = ['TaskDuration', 'ScriptDuration', 'RecalcStyleDuration', 'LayoutDuration'].map((name) => perFrame(name).toFixed(1))
    console.log(`${description}: ${durations[0]} ms of CPU time per frame (script ${durations[1]}, style ${durations[2]}, layout ${durations[3]}); frame interval: median ${result.median.toFixed(1)} ms, 95th percentile ${result.p95.toFixed(1)} ms; ${result.rendered} rows rendered`)
    assert.ok(perFrame('TaskDuration') < maxTaskMs, `${description}: ${perFrame('TaskDuration')} ms of CPU time per frame, expected less than ${maxTaskMs}`)
    assert.ok(result.rendered < MAX_RENDERED_ROWS, `${description}: ${result.rendered} rows are rendered at a time`)
    return perFrame('TaskDuration')
  }
  // The distances per frame are those of a wheel, of a touch screen, and a larger one to the end of the list.
  const wheelFrameMs = await measureScroll('four rows per frame', 4 * ROW_HEIGHT, MAX_FRAME_MS, 120)
  await measureScroll('twenty rows per frame', 20 * ROW_HEIGHT, MAX_FRAME_FACTOR * wheelFrameMs, 120)
  await measureScroll('two hundred rows per frame', 200 * ROW_HEIGHT, MAX_FRAME_FACTOR * wheelFrameMs)
  const last = page.locator('.hits .row', { hasText: `checkout-${ROWS - 1}-` })
  await last.waitFor()
  await assertDocumentOrder(page)
  await cdp.send('HeapProfiler.collectGarbage')
  const { usedSize } = await cdp.send('Runtime.getHeapUsage')
  console.log(`${(usedSize / (1 << 20)).toFixed(1)} MiB of heap`)
  assert.ok(usedSize < MAX_HEAP_BYTES, `${usedSize} bytes of heap`)
  // Scroll back near the top, where the result pages have been dropped and must be loaded again.
  await page.evaluate((top) => (document.querySelector('.hits').scrollTop = top), 310 * ROW_HEIGHT)
  await page.locator('.hits .row', { hasText: 'checkout-310-' }).waitFor()
  await assertDocumentOrder(page)
  await page.unroute(manyRows)
}

/** While the list does not scroll, its rows are in document order, for screen readers and text selection. */
async function assertDocumentOrder(page) {
  await page.waitForFunction(() => {
    const rows = [...document.querySelectorAll('.hits .row')].map((row) => Number(row.getAttribute('aria-rowindex')))
    return rows.length > 2 && rows.slice(2).every((row, nth) => row === rows[nth + 1] + 1)
  })
}

if (isMain(import.meta)) await runSignedIn(process.argv[2], checkManyRows)
