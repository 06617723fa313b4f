// Measures the UI of a running fleet, and prints a line `name value unit` for each figure. Durations depend on the machine, so nothing is
// asserted: node e2e/budgets.mjs <address with token> [seconds of live updates] [number of pods to wait for]
// The fleet should have workloads that change: crowsnest up --load pods=30000,churn=10/s. .ci/ui-budgets starts one.
import { api, walkSignedIn } from './browser.mjs'
import { scroll } from './scroll.mjs'

const LOADS = 9
/** Typed into the search box, one key after the other; each state of the text is a query. */
const TYPED = 'kind:pod status:Running'
/** Keys that are typed before the first measured one. */
const UNMEASURED = 'kind:pod'.length
const ROW = 28
const SCROLLED_FRAMES = 300
/** Share of the pods that exist at any time while workloads change. */
const EXISTING_SHARE = 0.98
const POLL_INTERVAL_MS = 2_000

function report(name, value, unit) {
  console.log(`${name} ${Number(value.toFixed(unit === 'ms' || unit === 'MiB' ? 1 : 0))} ${unit}`)
}

/** Prints the median and the highest of some durations in milliseconds. */
function reportDurations(name, durations) {
  const sorted = durations.toSorted((a, b) => a - b)
  report(`${name}-p50`, sorted[sorted.length >> 1], 'ms')
  report(`${name}-max`, sorted.at(-1), 'ms')
}

const searchBox = (page) => page.getByRole('combobox', { name: 'Search all clusters' })

/** Waits until the fleet has created its pods and the search finds them. */
async function waitForPods(page, pods) {
  const count = async () => (await api(page, 'GET', '/apis/search.crowsnest.io/v1alpha1/count?q=kind%3Apod')).total
  while ((await count()) < pods * EXISTING_SHARE) await page.waitForTimeout(POLL_INTERVAL_MS)
}

/** Loads the home page with an empty browser cache: the first contentful paint, requests and bytes until the search box is shown. */
async function loads(page, origin, protocol) {
  const paints = []
  for (let load = 0; load < LOADS; load += 1) {
    await protocol.send('Network.clearBrowserCache')
    await page.goto(origin)
    await searchBox(page).waitFor()
    paints.push(await page.evaluate(() => performance.getEntriesByName('first-contentful-paint')[0].startTime))
  }
  reportDurations('ui/first-contentful-paint', paints)

  // As transferred, with the headers of the responses.
  let bytes = 0
  let requests = 0
  const files = new Set()
  const countRequest = ({ requestId, request }) => {
    requests += 1
    if (/\/$|\/assets\//.test(new URL(request.url).pathname)) files.add(requestId)
  }
  const countBytes = ({ requestId, encodedDataLength }) => {
    if (files.has(requestId)) bytes += encodedDataLength
  }
  protocol.on('Network.requestWillBeSent', countRequest)
  protocol.on('Network.loadingFinished', countBytes)
  await protocol.send('Network.clearBrowserCache')
  await page.goto(origin)
  await searchBox(page).waitFor()
  protocol.off('Network.requestWillBeSent', countRequest)
  protocol.off('Network.loadingFinished', countBytes)
  report('ui/initial-download', bytes, 'bytes')
  report('ui/initial-requests', requests, 'requests')
}

/** In the page: waits until the visible rows of the search box's query and their number are painted; returns the durations since the key and since the request. */
async function waitForResults() {
  const box = document.querySelector('.searchbox input')
  const pressed = window.lastInput
  for (;;) {
    await new Promise(requestAnimationFrame)
    // The rows and their number are those of the query: until then, the address is that of the previous one, or the rows are marked as incomplete.
    const isShown = new URLSearchParams(location.search).get('q') === box.value && document.querySelector('.hits')?.getAttribute('aria-busy') === 'false'
    const isQuery = ({ name }) => /v1alpha1\/query$/.test(new URL(name).pathname) && new URL(name).searchParams.get('q') === box.value
    // An entry is added when the response has ended.
    const request = performance.getEntriesByType('resource').findLast((entry) => isQuery(entry) && entry.startTime >= pressed)
    if (!request || !isShown) continue
    // The frame with the results has been painted when the next one begins.
    await new Promise(requestAnimationFrame)
    const now = performance.now()
    return { fromKey: now - pressed, fromRequest: now - request.startTime }
  }
}

/** Types a query. Each key is followed by its results. */
async function typing(page, origin) {
  await page.goto(`${origin}/search?q=${encodeURIComponent('kind:')}`)
  await page.getByText(/objects? in [\d.]+ ms/).waitFor()
  await searchBox(page).fill(TYPED.slice(0, UNMEASURED))
  await page.evaluate(() => {
    performance.setResourceTimingBufferSize(10_000)
    addEventListener('input', () => (window.lastInput = performance.now()), true)
  })
  const durations = []
  for (const key of TYPED.slice(UNMEASURED)) {
    await page.keyboard.type(key)
    durations.push(await page.evaluate(waitForResults))
  }
  reportDurations('ui/typing-to-results', durations.map(({ fromKey }) => fromKey))
  // Without the time until the query is sent.
  reportDurations('ui/request-to-results', durations.map(({ fromRequest }) => fromRequest))
}

/** Scrolls through the results by four rows a frame. */
async function scrolling(page, origin) {
  await page.goto(`${origin}/search?q=kind%3Apod`)
  const status = page.getByText(/objects? in [\d.]+ ms/)
  await status.waitFor()
  const total = Number((await status.textContent()).match(/^[\d,]+/)[0].replaceAll(',', ''))
  const frames = await page.evaluate(scroll, { by: 4 * ROW, most: SCROLLED_FRAMES, height: total * ROW })
  report('ui/scroll/results', total, 'rows')
  report('ui/scroll/frame-p50', frames.median, 'ms')
  report('ui/scroll/frame-p95', frames.p95, 'ms')
  report('ui/scroll/rendered', frames.rendered, 'rows')
}

/** The page's heap after a garbage collection, and its number of DOM nodes. */
async function measureMemory(protocol) {
  await protocol.send('HeapProfiler.collectGarbage')
  const { usedSize } = await protocol.send('Runtime.getHeapUsage')
  const { nodes } = await protocol.send('Memory.getDOMCounters')
  return { heap: usedSize / (1 << 20), nodes }
}

/** Memory while results are updated live, after a tenth of the time and at its end. */
async function liveUpdates(page, origin, protocol, seconds) {
  await page.goto(`${origin}/search?q=kind%3Apod&live=true`)
  await page.locator('.live i.beat').waitFor()
  await page.evaluate(() => {
    window.updates = 0
    new MutationObserver(() => (window.updates += 1)).observe(document.querySelector('.hits'), { subtree: true, childList: true, characterData: true, attributes: true })
  })
  await page.waitForTimeout(seconds * 100)
  const before = await measureMemory(protocol)
  await page.waitForTimeout(seconds * 900)
  const after = await measureMemory(protocol)
  report('ui/live/time', seconds, 's')
  report('ui/live/updates', await page.evaluate(() => window.updates), 'updates')
  report('ui/live/heap', after.heap, 'MiB')
  report('ui/live/heap-grown', after.heap - before.heap, 'MiB')
  report('ui/live/nodes', after.nodes, 'nodes')
  report('ui/live/nodes-grown', after.nodes - before.nodes, 'nodes')
}

const [address, seconds = '60', pods = '0'] = process.argv.slice(2)
await walkSignedIn(address, async (page, origin) => {
  const protocol = await page.context().newCDPSession(page)
  await protocol.send('Network.enable')
  await waitForPods(page, Number(pods))
  await loads(page, origin, protocol)
  await typing(page, origin)
  await scrolling(page, origin)
  await liveUpdates(page, origin, protocol, Number(seconds))
})
