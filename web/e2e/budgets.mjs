// Measures the UI of a running fleet, and prints a line `name value unit` for each measurement. Durations depend on the machine, so only numbers
// of requests, bytes, rows and nodes are limited: node e2e/budgets.mjs <address with token> [seconds of live updates] [number of pods to wait for]
// The fleet should have workloads that change: crowsnest up --load pods=30000,churn=10/s. .ci/ui-budgets starts one.
import assert from 'node:assert/strict'
import { api, runSignedIn } from './browser.mjs'
import { MAX_RENDERED_ROWS, ROW_HEIGHT, scroll } from './scroll.mjs'

const LOADS = 9
/** Query that is typed into the search box key by key. Each key starts a search. */
const TYPED_QUERY = 'kind:pod status:Running'
/** Number of keys that are typed before the first measured one. */
const UNMEASURED_KEYS = 'kind:pod'.length
const SCROLLED_FRAMES = 300
/** Share of the pods that must exist before measuring starts. Some pods are always missing, because workloads change. */
const MIN_POD_SHARE = 0.98
const POLL_INTERVAL_MS = 2_000
/** Maximum values of the measurements that do not depend on the machine. The growth of the heap and of the nodes varies with the time of garbage collections. */
const LIMITS = {
  'ui/initial-download': 150_000,
  'ui/initial-requests': 30,
  'ui/scroll/rendered': MAX_RENDERED_ROWS,
  'ui/live/heap': 50,
  'ui/live/heap-grown': 4,
  'ui/live/nodes': 10_000,
  'ui/live/nodes-grown': 1_000,
}
/** Descriptions of the measurements above their limits. All measurements are printed before the script fails. */
const excesses = []

function report(name, value, unit) {
  const line = `${name} ${Number(value.toFixed(unit === 'ms' || unit === 'MiB' ? 1 : 0))} ${unit}`
  console.log(line)
  if (value > LIMITS[name]) excesses.push(`${line}: more than ${LIMITS[name]}`)
}

/** Prints the median and the maximum of durations in milliseconds. */
function reportDurations(name, durations) {
  const sorted = durations.toSorted((a, b) => a - b)
  report(`${name}-p50`, sorted[sorted.length >> 1], 'ms')
  report(`${name}-max`, sorted.at(-1), 'ms')
}

const searchBox = (page) => page.getByRole('combobox', { name: 'Search all clusters' })

/** Waits until the fleet has created its pods and the search finds them. */
async function waitForPods(page, pods) {
  const count = async () => (await api(page, 'GET', '/apis/search.crowsnest.io/v1alpha1/count?q=kind%3Apod')).total
  while ((await count()) < pods * MIN_POD_SHARE) await page.waitForTimeout(POLL_INTERVAL_MS)
}

/** Loads the home page with an empty browser cache. Reports the first contentful paint, and the requests and bytes until the search box is shown. */
async function measureLoads(page, origin, cdp) {
  const paints = []
  for (let load = 0; load < LOADS; load += 1) {
    await cdp.send('Network.clearBrowserCache')
    await page.goto(origin)
    await searchBox(page).waitFor()
    paints.push(await page.evaluate(() => performance.getEntriesByName('first-contentful-paint')[0].startTime))
  }
  reportDurations('ui/first-contentful-paint', paints)

  // Transferred bytes, including the headers of the responses.
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
  cdp.on('Network.requestWillBeSent', countRequest)
  cdp.on('Network.loadingFinished', countBytes)
  await cdp.send('Network.clearBrowserCache')
  await page.goto(origin)
  await searchBox(page).waitFor()
  cdp.off('Network.requestWillBeSent', countRequest)
  cdp.off('Network.loadingFinished', countBytes)
  report('ui/initial-download', bytes, 'bytes')
  report('ui/initial-requests', requests, 'requests')
}

/**
 * Runs in the page: measures the time from a key in the search box to the paint of the results of its query, which are the visible rows and the
 * total. A MutationObserver detects the results, because polling would add up to a frame. `window.measureKey()` starts the measurement of the next key;
 * `window.keyDurations` is a promise of the durations from the key to the paint and from the request to the paint.
 */
function observeKeys() {
  const box = document.querySelector('.searchbox input')
  const sendRequest = window.fetch
  const sentAt = new Map()
  let measurement
  window.fetch = (input, init) => {
    const { pathname, searchParams } = new URL(input instanceof Request ? input.url : input, location.href)
    const query = searchParams.get('q')
    // The first request of a query counts. Further requests, such as those of the histogram, follow it.
    if (pathname.endsWith('/v1alpha1/query') && !sentAt.has(query)) sentAt.set(query, performance.now())
    return sendRequest(input, init)
  }
  // The event's timestamp is the time at which the key was pressed, before the page handles the event.
  addEventListener('keydown', (event) => measurement && (measurement.pressedAt = event.timeStamp), true)
  addEventListener('input', () => measurement && (measurement.query = box.value), true)
  // Until the results of a query are shown, the URL contains the previous query, or the rows are marked as busy.
  const isShown = (query) => new URLSearchParams(location.search).get('q') === query && document.querySelector('.hits')?.getAttribute('aria-busy') === 'false'
  const finish = ({ pressedAt, query, resolve }) => {
    const paintedAt = performance.now()
    resolve({ fromKey: paintedAt - pressedAt, fromRequest: paintedAt - sentAt.get(query) })
  }
  new MutationObserver(() => {
    if (measurement?.query === undefined || !isShown(measurement.query)) return
    const shown = measurement
    measurement = undefined
    // Callbacks of requestAnimationFrame run before the paint; a message that they send is received after it.
    requestAnimationFrame(() => {
      if (!isShown(shown.query)) return void (measurement = shown)
      const { port1, port2 } = new MessageChannel()
      port1.onmessage = () => finish(shown)
      port2.postMessage(undefined)
    })
  }).observe(document, { subtree: true, childList: true, characterData: true, attributes: true })
  window.measureKey = () => {
    window.keyDurations = new Promise((resolve) => (measurement = { resolve }))
  }
}

/** Types a query, and waits for the results after each key. */
async function measureTyping(page, origin) {
  const unmeasured = TYPED_QUERY.slice(0, UNMEASURED_KEYS)
  await page.goto(`${origin}/search?q=${encodeURIComponent('kind:')}`)
  await page.getByText(/objects? in [\d.]+ ms/).waitFor()
  await page.evaluate(observeKeys)
  await searchBox(page).fill(unmeasured)
  await page.waitForURL((url) => url.searchParams.get('q') === unmeasured)
  await page.locator('.hits[aria-busy=false]').waitFor()
  const durations = []
  for (const key of TYPED_QUERY.slice(UNMEASURED_KEYS)) {
    await page.evaluate(() => window.measureKey())
    await page.keyboard.type(key)
    durations.push(await page.evaluate(() => window.keyDurations))
  }
  reportDurations('ui/typing-to-results', durations.map(({ fromKey }) => fromKey))
  // Does not include the time from the key to the request.
  reportDurations('ui/request-to-results', durations.map(({ fromRequest }) => fromRequest))
}

/** Scrolls through the results by four rows per frame. */
async function measureScrolling(page, origin) {
  await page.goto(`${origin}/search?q=kind%3Apod`)
  const status = page.getByText(/objects? in [\d.]+ ms/)
  await status.waitFor()
  const total = Number((await status.textContent()).match(/^[\d,]+/)[0].replaceAll(',', ''))
  const frames = await page.evaluate(scroll, { by: 4 * ROW_HEIGHT, maxFrames: SCROLLED_FRAMES, height: total * ROW_HEIGHT })
  report('ui/scroll/results', total, 'rows')
  report('ui/scroll/frame-p50', frames.median, 'ms')
  report('ui/scroll/frame-p95', frames.p95, 'ms')
  report('ui/scroll/rendered', frames.rendered, 'rows')
}

/** Measures the page's heap after a garbage collection, and its number of DOM nodes. */
async function measureMemory(cdp) {
  await cdp.send('HeapProfiler.collectGarbage')
  const { usedSize } = await cdp.send('Runtime.getHeapUsage')
  const { nodes } = await cdp.send('Memory.getDOMCounters')
  return { heap: usedSize / (1 << 20), nodes }
}

/** Measures memory during live updates of the results: after a tenth of the time, and at the end. */
async function measureLiveUpdates(page, origin, cdp, seconds) {
  await page.goto(`${origin}/search?q=kind%3Apod&live=true`)
  await page.locator('.live i.beat').waitFor()
  await page.evaluate(() => {
    window.updates = 0
    new MutationObserver(() => (window.updates += 1)).observe(document.querySelector('.hits'), { subtree: true, childList: true, characterData: true, attributes: true })
  })
  await page.waitForTimeout(seconds * 100)
  const before = await measureMemory(cdp)
  await page.waitForTimeout(seconds * 900)
  const after = await measureMemory(cdp)
  report('ui/live/time', seconds, 's')
  report('ui/live/updates', await page.evaluate(() => window.updates), 'updates')
  report('ui/live/heap', after.heap, 'MiB')
  report('ui/live/heap-grown', after.heap - before.heap, 'MiB')
  report('ui/live/nodes', after.nodes, 'nodes')
  report('ui/live/nodes-grown', after.nodes - before.nodes, 'nodes')
}

const [address, seconds = '60', pods = '0'] = process.argv.slice(2)
await runSignedIn(address, async (page, origin) => {
  const cdp = await page.context().newCDPSession(page)
  await cdp.send('Network.enable')
  await waitForPods(page, Number(pods))
  await measureLoads(page, origin, cdp)
  await measureTyping(page, origin)
  await measureScrolling(page, origin)
  await measureLiveUpdates(page, origin, cdp, Number(seconds))
  assert.deepEqual(excesses, [])
})
