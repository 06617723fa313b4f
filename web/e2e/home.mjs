// The search page: typing with suggestions, facets, keys, live and pause, columns, palette, languages, themes, stored preferences.
// Run by quickstart.mjs, or alone: node e2e/home.mjs <address with token> <folder for screenshots>
import assert from 'node:assert/strict'
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { gzipSync } from 'node:zlib'
import { assertAccessible, isMain, setPreference, runSignedIn } from './browser.mjs'
import { respondWithHits } from './scroll.mjs'

/** Maximum compressed size of the files that the home page loads before its search box is shown, including the code of the parts below the box. */
const MAX_FIRST_PAINT_BYTES = 150_000
/** Maximum number of files that the home page loads before its search box is shown. */
const MAX_FIRST_PAINT_FILES = 10
/** Maximum number of elements of the home page of a fleet with three clusters. */
const MAX_HOME_ELEMENTS = 600

/** Time after which a typed query would have been sent if it were not cancelled, in milliseconds. */
const CANCELLED_QUERY_MS = 500

/** Checks all features on a signed-in page. */
export async function checkHome(page, origin, pictures) {
  await checkFirstPaint(page, origin)
  await checkTyping(page, origin)
  await checkCancelledTyping(page, origin)
  await checkFacets(page, origin)
  await checkKeyboard(page, origin)
  await checkStreaming(page, origin)
  await checkLiveSearch(page, origin)
  await checkSecondPage(page, origin)
  await checkColumns(page, origin)
  await checkWideTable(page, origin)
  await checkPalette(page, origin)
  await checkSavedSearches(page, origin)
  await checkStarredQueries(page, origin)
  await checkFavouriteClusters(page, origin)
  await checkAcknowledgement(page, origin, pictures)
  await checkLanguages(page, origin)
  await checkThemes(page, origin, pictures)
}

const searchBox = (page) => page.getByRole('combobox', { name: 'Search all clusters' })
const queryOf = (page) => new URL(page.url()).searchParams.get('q')
const waitForAllHits = (page) => page.getByText(/objects? in [\d.]+ ms/).waitFor()
const waitForQuery = (page, expected) => page.waitForURL((url) => url.searchParams.get('q') === expected)

async function search(page, origin, q, otherParameters = '') {
  await page.goto(`${origin}/search?q=${encodeURIComponent(q)}${otherParameters}`)
  await waitForAllHits(page)
}

/** Checks the number and the size of the files that are loaded before the search box is shown. */
async function checkFirstPaint(page, origin) {
  const fetched = new Set()
  const record = (request) => fetched.add(request.url())
  page.on('request', record)
  await page.goto(origin)
  await searchBox(page).waitFor()
  page.off('request', record)
  const files = [...fetched].filter((file) => /\/$|\/assets\//.test(new URL(file).pathname))
  const sizes = await Promise.all(files.map(async (file) => gzipSync(await (await page.request.get(file)).body()).length))
  const total = sizes.reduce((sum, size) => sum + size, 0)
  assert.ok(files.length >= 3 && total <= MAX_FIRST_PAINT_BYTES, `${total} bytes of ${files}`)
  assert.ok(files.length <= MAX_FIRST_PAINT_FILES, `${files.length} files: ${files}`)
}

async function checkTyping(page, origin) {
  await page.goto(origin)
  // The verdict on the health of the fleet, with a card for each cluster.
  await page.locator('.verdict').waitFor()
  await page.locator('article[data-cluster=member1]').getByRole('meter', { name: 'CPU requested, member1' }).waitFor()
  const elements = await page.locator('*').count()
  assert.ok(elements <= MAX_HOME_ELEMENTS, `${elements} elements`)
  await assertAccessible(page)
  await searchBox(page).pressSequentially('kin')
  const options = page.getByRole('listbox', { name: 'Suggestions' }).getByRole('option')
  await options.filter({ hasText: 'kind:' }).first().waitFor()
  // Tab inserts the field, then a value with its number of objects.
  await page.keyboard.press('Tab')
  assert.equal(await searchBox(page).inputValue(), 'kind:')
  await page.keyboard.type('po')
  const pod = options.filter({ hasText: /^Pod\s*\d/ })
  await pod.waitFor()
  await page.keyboard.press('ArrowDown')
  assert.equal(await options.first().getAttribute('aria-selected'), 'true')
  assert.ok(await searchBox(page).getAttribute('aria-activedescendant'), 'no suggestion is active')
  await page.keyboard.press('Enter')
  assert.equal(await searchBox(page).inputValue(), 'kind:Pod ')
  // Typing starts a search and highlights the syntax.
  await waitForQuery(page, 'kind:Pod ')
  await waitForAllHits(page)
  assert.deepEqual(await page.locator('.paint .q-field, .paint .q-value').allTextContents(), ['kind:', 'Pod'])
  // Escape closes the list, then leaves the box.
  await page.keyboard.type('nosuch')
  await page.keyboard.press('Escape')
  await page.keyboard.press('Escape')
  assert.equal(await page.evaluate(() => document.activeElement === document.body), true)
  // Invalid parts of the query are underlined, and earlier results stay.
  await search(page, origin, 'kind:pod nosuch:thing')
  await page.locator('.paint .has-notice').first().waitFor()
  await page.getByText('unknown field "nosuch", searched as text').waitFor()
}

/** A click on Home right after a key cancels the typed query, also on the home page. */
async function checkCancelledTyping(page, origin) {
  await page.goto(origin)
  // Both events are in one task, so that the response cannot arrive before the click.
  await searchBox(page).evaluate((box) => {
    Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set.call(box, 'kind:node')
    box.dispatchEvent(new Event('input', { bubbles: true }))
    document.querySelector('.rail a[href="/"]').click()
  })
  await page.waitForTimeout(CANCELLED_QUERY_MS)
  assert.equal(page.url(), `${origin}/`)
  assert.equal(await searchBox(page).inputValue(), '')
}

async function checkFacets(page, origin) {
  await search(page, origin, 'kind:pod OR kind:node')
  await assertAccessible(page)
  const rail = page.getByRole('complementary', { name: 'Facets' })
  const node = rail.getByRole('button', { name: /^Node \d/ })
  await node.click()
  await waitForQuery(page, '(kind:pod OR kind:node) kind:Node')
  assert.equal(await searchBox(page).inputValue(), '(kind:pod OR kind:node) kind:Node')
  await page.locator('aside button[aria-pressed=true]', { hasText: 'Node' }).waitFor()
  await node.click()
  await waitForQuery(page, '(kind:pod OR kind:node)')
  // Excluded with the mouse, included again with the keyboard.
  await rail.getByRole('button', { name: /^member1 \d/ }).click({ modifiers: ['Alt'] })
  await waitForQuery(page, '(kind:pod OR kind:node) -cluster:member1')
  await waitForAllHits(page)
  await rail.getByRole('button', { name: /^cluster:member1 is excluded/ }).press('Enter')
  await waitForQuery(page, '(kind:pod OR kind:node)')
  await page.goBack()
  await waitForQuery(page, '(kind:pod OR kind:node) -cluster:member1')
}

async function checkKeyboard(page, origin) {
  await page.goto(origin)
  await searchBox(page).waitFor()
  await page.keyboard.type('kind:node')
  await page.keyboard.press('Enter')
  await waitForQuery(page, 'kind:node')
  await waitForAllHits(page)
  await page.keyboard.press('Escape')
  await page.keyboard.press('Escape')
  await page.keyboard.press('j')
  await page.keyboard.press('ArrowDown')
  const grid = page.getByRole('grid', { name: 'Results' })
  assert.equal(await grid.getAttribute('aria-activedescendant'), 'row-1')
  const name = await page.locator('#row-1 [data-column=name]').textContent()
  await page.keyboard.press('Enter')
  await page.waitForURL(/\/object\?/)
  await page.getByRole('heading', { name }).waitFor()
  await page.keyboard.press('/')
  await page.waitForURL(`${origin}/`)
  assert.equal(await searchBox(page).evaluate((input) => input === document.activeElement), true)
  // Recent queries are offered.
  await page.keyboard.press('ArrowDown')
  await page.getByRole('option', { name: 'kind:node recent' }).waitFor()
  await page.keyboard.press('Escape')
  await page.keyboard.press('Escape')
  await page.keyboard.press('?')
  await page.getByRole('dialog', { name: 'Keys and query language' }).waitFor()
  await assertAccessible(page)
  await page.keyboard.press('Escape')
  await page.getByRole('dialog').waitFor({ state: 'detached' })
}

const hit = (name, status) => ({ cluster: 'member1', apiVersion: 'v1', kind: 'Pod', resource: 'pods', namespace: 'shop', name, status, matched: [] })
const done = (total) => ['done', { total, totalRelation: 'eq', tookMs: 1, seq: 1 }]

/** Responses to queries with the word `stubbed-query` are generated event by event, so that the displayed results do not depend on the fleet. */
async function stubResponses(page) {
  await page.addInitScript(() => {
    const real = window.fetch
    window.fetch = (input, init) => {
      // The server answers the requests for counts, which the histogram needs.
      if (!/\/query\?(?!limit=0).*stubbed-query/.test(String(input))) return real(input, init)
      const body = new ReadableStream({
        start(stream) {
          window.requestedUrl = String(input)
          window.sendEvent = (event, data) => stream.enqueue(new TextEncoder().encode(`event: ${event}\ndata: ${JSON.stringify(data)}\n\n`))
        },
      })
      return Promise.resolve(new Response(body))
    }
  })
}

const sendEvents = (page, ...events) => page.evaluate((all) => all.forEach(([event, data]) => window.sendEvent(event, data)), events)
const waitForRequest = (page, part) => page.waitForFunction((part) => window.requestedUrl?.includes(part), part)
const names = (page) => page.locator('.hits .row:not(.head) [data-column=name]').allTextContents()

/** Partial results are shown at once; previous results stay until the first new ones arrive. */
async function checkStreaming(page, origin) {
  await stubResponses(page)
  await page.goto(`${origin}/search?q=stubbed-query`)
  await waitForRequest(page, 'stubbed-query')
  await sendEvents(page, ['facets', { kind: [{ value: 'Pod', count: 2 }] }], ['matches', [hit('a', 'Running')]])
  await page.getByRole('status').getByText('Searching… 1').waitFor()
  assert.deepEqual(await names(page), ['a'])
  await page.getByRole('complementary', { name: 'Facets' }).getByRole('button', { name: 'Pod 2' }).waitFor()
  await sendEvents(page, ['matches', [hit('b', 'Running')]], ['skipped', [{ cluster: 'member3', reason: 'timeout', ageSeconds: 90 }]], done(2))
  await page.getByText('2 objects in 1 ms').waitFor()
  await page.getByText('timeout, as of 90s ago').waitFor()
  assert.deepEqual(await names(page), ['a', 'b'])
  await assertAccessible(page)
  await searchBox(page).fill('stubbed-query again')
  await waitForRequest(page, 'again')
  assert.deepEqual(await names(page), ['a', 'b'])
  await sendEvents(page, ['matches', [hit('c', 'Running')]], done(1))
  await page.getByText('1 object in 1 ms').waitFor()
  assert.deepEqual(await names(page), ['c'])
}

/** A live search whose events are generated instead of sent by the server. */
async function checkLiveSearch(page, origin) {
  await page.goto(`${origin}/search?q=stubbed-query`)
  await waitForRequest(page, 'stubbed-query')
  await sendEvents(page, done(0))
  await page.getByRole('button', { name: 'Live' }).click()
  await page.waitForURL(/live=true/)
  await waitForRequest(page, 'watch=true')
  await sendEvents(page, ['facets', {}], ['matches', [hit('a', 'Running'), hit('b', 'Running')]], done(2))
  const rows = page.locator('.hits .row:not(.head)')
  await rows.nth(1).waitFor()

  await sendEvents(page, ['changed', hit('b', 'Error')], ['changed', hit('c', 'Pending')], ['left', hit('a', 'Running')], ['counts', { total: 2, totalRelation: 'eq', facets: {}, notices: [] }])
  await page.locator('.row.changed', { hasText: 'Error' }).waitFor()
  assert.deepEqual(await names(page), ['c', 'b'])

  await page.getByRole('button', { name: 'Pause' }).click()
  await sendEvents(page, ['changed', hit('d', 'Running')], ['left', hit('b', 'Error')])
  await page.getByText('2 changes pending').waitFor()
  assert.deepEqual(await names(page), ['c', 'b'])
  await page.getByRole('button', { name: 'Resume' }).click()
  await page.locator('.row', { hasText: 'Running' }).waitFor()
  assert.deepEqual(await names(page), ['d', 'c'])

  // A live search works with the real server. A query for a past time has no live mode, because its results cannot change.
  await search(page, origin, 'kind:node', '&live=true')
  await page.locator('.live i.beat').waitFor()
  await search(page, origin, 'kind:node at:now-1m')
  const button = page.getByRole('button', { name: 'Live' })
  assert.equal(await button.getAttribute('aria-disabled'), 'true')
  assert.match(await button.getAttribute('title'), /another time/)
}

/** The second page of hits is requested only when it is needed, for example to select all hits. */
async function checkSecondPage(page, origin) {
  // The server answers the requests for counts, which the histogram needs.
  const query = /\/query\?(?!limit=0).*eighty-hits/
  const cursors = []
  await page.route(query, (route) => {
    const cursor = new URL(route.request().url()).searchParams.get('cursor')
    if (cursor !== null) cursors.push(cursor)
    return respondWithHits(80)(route)
  })
  await search(page, origin, 'eighty-hits')
  assert.deepEqual(cursors, [])
  await page.getByRole('button', { name: 'Select all' }).click()
  await page.getByRole('status').getByText('80 results selected').waitFor()
  assert.equal(cursors.length, 1, cursors.join())
  await page.unroute(query)
}

const columnHeads = async (page) => (await page.getByRole('columnheader').allTextContents()).map((head) => head.trim())

async function checkColumns(page, origin) {
  await search(page, origin, 'kind:pod')
  const heads = () => columnHeads(page)
  // Each kind has its own columns; columns without a value are hidden.
  const podHeads = ['Cluster', 'Namespace', 'Name', 'Status', 'Ready', 'Restarts', 'Node', 'Age']
  assert.deepEqual((await heads()).filter((head) => head !== 'Matched'), podHeads)
  await page.getByRole('button', { name: 'Columns', exact: true }).click()
  await page.getByRole('checkbox', { name: 'Images', exact: true }).check()
  await page.getByRole('checkbox', { name: 'Node', exact: true }).uncheck()
  await page.getByRole('button', { name: 'Move Images forward' }).click()
  await page.keyboard.press('Escape')
  const expectedHeads = await heads()
  assert.ok(expectedHeads.includes('Images') && !expectedHeads.includes('Node'), expectedHeads.join())
  // The URL contains the columns, and they are stored as a preference.
  await page.reload()
  await waitForAllHits(page)
  assert.deepEqual(await heads(), expectedHeads)
  // The chosen columns apply to this kind only.
  await search(page, origin, 'kind:node')
  assert.ok(!(await heads()).includes('Images'), 'the columns of Pods are shown for Nodes')
  await search(page, origin, 'kind:pod')
  assert.deepEqual(await heads(), expectedHeads)
  await page.getByRole('columnheader', { name: 'Name', exact: true }).getByRole('button').click()
  await waitForQuery(page, 'kind:pod sort:name')
  assert.equal(await page.getByRole('columnheader', { name: 'Name', exact: true }).getAttribute('aria-sort'), 'ascending')
  // An export contains the same columns.
  await page.getByRole('button', { name: 'Export' }).click()
  const [file] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: 'These columns (CSV)' }).click()])
  const lines = (await readFile(await file.path(), 'utf8')).split('\r\n')
  assert.match(lines[0], /^cluster,namespace,name,status,ready,restarts,.*images/)
  assert.ok(lines.length > 2, 'the export contains no results')
  const [manifests] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: 'Whole objects (JSON lines)' }).click()])
  const objects = (await readFile(await manifests.path(), 'utf8')).trim().split('\n').map((line) => JSON.parse(line))
  assert.ok(objects.length > 0 && objects.every(({ kind }) => kind === 'Pod'), `${objects.length} objects`)
  await page.getByRole('button', { name: 'Columns', exact: true }).click()
  await page.getByRole('button', { name: 'Reset' }).click()
  await page.keyboard.press('Escape')
  await checkPrintedColumns(page, origin)
}

/** kubectl's printed columns of a kind, and columns for labels. */
async function checkPrintedColumns(page, origin) {
  await search(page, origin, 'kind:deployment name:=web cluster:member1')
  await page.getByRole('button', { name: 'Columns', exact: true }).click()
  await page.getByRole('group', { name: 'As kubectl prints Deployment' }).getByRole('checkbox', { name: 'Up-to-date' }).click()
  for (const name of ['app', '.spec.replicas']) {
    await page.getByRole('combobox', { name: 'Label or .path' }).fill(name)
    await page.getByRole('button', { name: 'Add', exact: true }).click()
  }
  await page.waitForURL((url) => url.searchParams.get('columns')?.endsWith('print:Up-to-date,label:app,.spec.replicas'))
  await assertAccessible(page)
  await page.keyboard.press('Escape')
  const row = page.locator('.hits .row:not(.head)')
  await row.locator('[data-column="print:Up-to-date"]', { hasText: '2' }).waitFor()
  assert.equal(await row.locator('[data-column="label:app"]').textContent(), 'web')
  await row.locator('[data-column=".spec.replicas"]', { hasText: '2' }).waitFor()
  await page.getByRole('columnheader', { name: 'Up-to-date', exact: true }).waitFor()
  // The URL reproduces the view for another user. An export contains the columns.
  await page.reload()
  await row.locator('[data-column="label:app"]', { hasText: 'web' }).waitFor()
  await page.getByRole('button', { name: 'Export' }).click()
  const [file] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: 'These columns (CSV)' }).click()])
  const [head, first] = (await readFile(await file.path(), 'utf8')).split('\r\n')
  assert.match(head, /print:Up-to-date,label:app,\.spec\.replicas$/)
  assert.match(first, /,2,web,2$/)
  await page.getByRole('button', { name: 'Columns', exact: true }).click()
  await page.getByRole('button', { name: 'Reset' }).click()
  await page.keyboard.press('Escape')
}

/** In the results of one kind, the button Wide adds the columns of `kubectl get -o wide`. */
async function checkWideTable(page, origin) {
  await search(page, origin, 'kind:deployment name:=web cluster:member1')
  const wide = (pressed) => page.getByRole('button', { name: 'Wide', exact: true, pressed })
  const selector = page.getByRole('columnheader', { name: 'Selector', exact: true })
  const heads = await columnHeads(page)
  assert.ok(heads.includes('Images') && !heads.includes('Selector'), heads.join())
  await wide(false).click()
  await selector.waitFor()
  await page.locator('.hits .row:not(.head) [data-column="print:Selector"]', { hasText: 'app=web' }).waitFor()
  // Columns that the table already has are not repeated.
  const wideHeads = await columnHeads(page)
  assert.equal(new Set(wideHeads).size, wideHeads.length, wideHeads.join())
  await assertAccessible(page)
  // The setting applies to this kind only.
  await page.reload()
  await selector.waitFor()
  await search(page, origin, 'kind:pod')
  await wide(false).waitFor()
  await search(page, origin, 'kind:pod OR kind:node')
  await page.getByRole('button', { name: 'Wide', exact: true, disabled: true }).waitFor()
  await search(page, origin, 'kind:deployment name:=web cluster:member1')
  await wide(true).click()
  await selector.waitFor({ state: 'detached' })
  assert.deepEqual(await columnHeads(page), heads)
}

async function checkPalette(page, origin) {
  await page.goto(origin)
  await searchBox(page).waitFor()
  await page.keyboard.press('Control+k')
  const dialog = page.getByRole('dialog', { name: 'Commands and short queries' })
  await dialog.getByRole('combobox').pressSequentially(':dep')
  const option = dialog.getByRole('option', { name: /^Deployment/ })
  await option.waitFor()
  await assertAccessible(page)
  await page.keyboard.press('Tab')
  assert.equal(await dialog.getByRole('combobox').inputValue(), ':deployment ')
  await page.keyboard.type('default @member2')
  await page.keyboard.press('Enter')
  await waitForQuery(page, 'kind:deployment ns:default cluster:member2')
  await waitForAllHits(page)
  await page.keyboard.press('Control+k')
  await page.keyboard.type('dark')
  await page.keyboard.press('Enter')
  await page.locator('html[data-theme=dark]').waitFor()
}

async function checkSavedSearches(page, origin) {
  await search(page, origin, 'kind:node status:Ready')
  await page.getByRole('button', { name: 'Save', exact: true }).click()
  await page.getByLabel('Title').fill('Good nodes')
  await page.getByLabel('Visible to all users who may search').check()
  await page.getByRole('button', { name: 'Save this search' }).click()
  await page.getByRole('button', { name: 'Save this search' }).waitFor({ state: 'detached' })
  await page.getByRole('link', { name: 'Home', exact: true }).click()
  await page.getByRole('link', { name: 'Good nodes' }).click()
  await waitForQuery(page, 'kind:node status:Ready')
  await page.getByRole('link', { name: 'Saved searches' }).click()
  const row = page.getByRole('row', { name: /Good nodes/ })
  await row.waitFor()
  await assertAccessible(page)
  await row.getByRole('button', { name: 'Change' }).click()
  await page.getByLabel('Title').fill('Nodes that are fine')
  await page.getByRole('dialog').getByRole('button', { name: 'Save' }).click()
  const changed = page.getByRole('row', { name: /Nodes that are fine.*shared/ })
  await changed.getByRole('button', { name: 'Delete' }).click()
  await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click()
  await changed.waitFor({ state: 'detached' })
}

/** Recent queries with a star are listed first, and are not cleared. */
async function checkStarredQueries(page, origin) {
  for (const q of ['kind:service', 'kind:configmap']) {
    await page.goto(origin)
    await searchBox(page).waitFor()
    await page.keyboard.type(q)
    await page.keyboard.press('Enter')
    await waitForQuery(page, q)
    await waitForAllHits(page)
  }
  await page.goto(origin)
  const recent = page.getByRole('region', { name: 'Recent', exact: true })
  const star = (pressed) => recent.getByRole('button', { name: 'Keep kind:service at the top', exact: true, pressed })
  const queries = () => recent.getByRole('listitem').getByRole('link').allTextContents()
  await star(false).waitFor()
  assert.equal((await queries())[0], 'kind:configmap')
  await star(false).click()
  await star(true).waitFor()
  assert.deepEqual((await queries()).slice(0, 2), ['kind:service', 'kind:configmap'])
  await assertAccessible(page)
  await recent.getByRole('button', { name: 'Clear' }).click()
  await recent.getByRole('link').filter({ hasText: 'kind:configmap' }).waitFor({ state: 'detached' })
  assert.deepEqual(await queries(), ['kind:service'])
  await page.reload()
  await star(true).waitFor()
  await page.keyboard.press('Control+k')
  const dialog = page.getByRole('dialog', { name: 'Commands and short queries' })
  await dialog.getByRole('option', { name: /^kind:service.*★ recent$/ }).waitFor()
  await page.keyboard.press('Escape')
  await star(true).click()
  await recent.waitFor({ state: 'detached' })
}

/** Clusters with a star are the first ones on the home page and in the fleet's table. */
async function checkFavouriteClusters(page, origin) {
  await page.goto(origin)
  const card = page.locator('article[data-cluster=member3]')
  await card.getByRole('button', { name: 'List member3 first', pressed: false }).click()
  await card.getByRole('button', { name: 'List member3 first', pressed: true }).waitFor()
  assert.equal(await page.locator('article[data-cluster]').first().getAttribute('data-cluster'), 'member3')
  await page.goto(`${origin}/fleet`)
  const rows = page.getByRole('table', { name: 'Clusters' }).locator('tr[data-cluster]')
  await rows.nth(2).waitFor()
  assert.equal(await rows.first().getAttribute('data-cluster'), 'member3')
  await assertAccessible(page)
  await rows.first().getByRole('button', { name: 'List member3 first', pressed: true }).click()
  await rows.getByRole('button', { name: 'List member3 first', pressed: false }).waitFor()
}

/** A problem is acknowledged on a phone: its card moves to the end until the problem affects more objects. */
async function checkAcknowledgement(page, origin, pictures) {
  const before = page.viewportSize()
  let failingPods = 2
  const totals = { 'kind:pod': () => failingPods, 'kind:event': () => 5 }
  const isCount = (url) => url.pathname.endsWith('/query') && url.searchParams.get('limit') === '0' && url.searchParams.get('facets') === 'cluster'
  await page.route(isCount, (route) => {
    const [kind] = new URL(route.request().url()).searchParams.get('q').split(' ')
    const total = totals[kind]?.() ?? 0
    return route.fulfill({ json: { total, facets: { cluster: total > 0 ? [{ value: 'member1', count: total }] : [] }, skipped: [] } })
  })
  await page.setViewportSize({ width: 390, height: 844 })
  await page.goto(origin)
  const card = page.locator('article[data-problem=pods]')
  const order = () => page.locator('article[data-problem]').evaluateAll((cards) => cards.map(({ dataset }) => dataset.problem))
  const acknowledge = card.getByRole('button', { name: 'Acknowledge: Failing pods', exact: true })
  const undo = card.getByRole('button', { name: 'Undo: Failing pods', exact: true })
  await acknowledge.waitFor()
  await page.locator('article[data-problem=warnings]').waitFor()
  assert.deepEqual(await order(), ['pods', 'warnings'])
  for (const target of await page.locator('.attention :is(a, button)').all()) {
    const { width, height } = await target.boundingBox()
    assert.ok(width >= 44 && height >= 44, `${await target.textContent()}: ${width} × ${height}`)
  }
  await acknowledge.click()
  await card.getByText(/acknowledged by you \d+s ago/).waitFor()
  assert.deepEqual(await order(), ['warnings', 'pods'])
  await page.waitForFunction(() => document.activeElement?.closest('article')?.dataset.problem === 'pods')
  await page.getByRole('status').getByText('1 problem needs attention').waitFor()
  assert.ok((await page.evaluate(() => document.documentElement.scrollWidth)) <= 390, 'wider than a phone')
  await assertAccessible(page)
  await page.screenshot({ path: join(pictures, 'acknowledged.png') })
  // The browser stores the acknowledgement until the problem affects more objects.
  await page.reload()
  await undo.waitFor()
  failingPods = 3
  await page.reload()
  await acknowledge.waitFor()
  assert.deepEqual(await order(), ['pods', 'warnings'])
  await acknowledge.press('Enter')
  await undo.press('Enter')
  await acknowledge.waitFor()
  assert.deepEqual(await order(), ['pods', 'warnings'])
  await page.unroute(isCount)
  await page.setViewportSize(before)
}

async function checkLanguages(page, origin) {
  await search(page, origin, 'kind:node')
  await setPreference(page, 'Language', 'zh-CN')
  await page.locator('html[lang=zh-CN]').waitFor()
  await page.getByText(/个对象，用时/).waitFor()
  await page.reload()
  await page.getByRole('columnheader', { name: '名称' }).waitFor()
  await page.goto(origin)
  await page.getByRole('link', { name: '不健康的对象' }).waitFor()
  await page.getByRole('heading', { name: '最近的变更' }).waitFor()
  await setPreference(page, '语言', 'en')
  await page.getByRole('link', { name: 'Unhealthy objects' }).waitFor()
}

async function checkThemes(page, origin, pictures) {
  await search(page, origin, 'kind:pod label:*')
  for (const theme of ['dark', 'light']) {
    await setPreference(page, 'Theme', theme)
    const lowContrasts = await page.evaluate(findLowContrasts)
    assert.deepEqual(lowContrasts, [], `in the ${theme} theme`)
    await page.screenshot({ path: join(pictures, `home-${theme}.png`) })
  }
  await setPreference(page, 'Theme', 'auto')
  // The page follows the theme of the system, even if that changes.
  const background = async (colorScheme) => {
    await page.emulateMedia({ colorScheme })
    return page.evaluate(() => getComputedStyle(document.body).backgroundColor)
  }
  assert.notEqual(await background('dark'), await background('light'))
}

/** Runs in the page: finds texts with a contrast below 4.5, the minimum of WCAG AA. */
function findLowContrasts() {
  const canvas = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true })
  const luminance = (colours) => {
    canvas.clearRect(0, 0, 1, 1)
    for (const colour of colours) {
      canvas.fillStyle = colour
      canvas.fillRect(0, 0, 1, 1)
    }
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4))
    return 0.2126 * r + 0.7152 * g + 0.0722 * b
  }
  const lowContrasts = []
  for (const element of document.querySelectorAll('body *')) {
    const text = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim() !== '')
    if (!text || !element.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue
    const backgrounds = []
    for (let ancestor = element; ancestor; ancestor = ancestor.parentElement) backgrounds.unshift(getComputedStyle(ancestor).backgroundColor)
    const background = luminance(backgrounds)
    const foreground = luminance([...backgrounds, getComputedStyle(element).color])
    const ratio = (Math.max(background, foreground) + 0.05) / (Math.min(background, foreground) + 0.05)
    if (ratio < 4.5) lowContrasts.push(`${element.className || element.tagName} "${element.textContent.slice(0, 20)}" ${ratio.toFixed(2)}`)
  }
  return [...new Set(lowContrasts)].slice(0, 10)
}

if (isMain(import.meta)) {
  const [address, pictures] = process.argv.slice(2)
  await runSignedIn(address, (page, origin) => checkHome(page, origin, pictures), { pictures })
}
