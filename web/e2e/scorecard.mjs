// Shows and checks twenty features that are important to users of fleet UIs.
// Run by tests/tests/tasks.rs, which prepares the fleet: node e2e/scorecard.mjs <address with token> <folder for screenshots>
// With UPDATE_SCREENSHOTS=1, it takes the pictures of docs/UI.md.
import assert from 'node:assert/strict'
import { readFile } from 'node:fs/promises'
import { api, assertAccessible, waitUntil, runSignedIn } from './browser.mjs'
import { CONTEXT, takePicture } from './pictures.mjs'

const SHOP = '/api/v1/namespaces/shop'
const DEPLOYMENT = { apiVersion: 'apps/v1', resource: 'deployments', namespace: 'shop' }
const CONTROL_PLANE = '@control-plane'

const searchBox = (page) => page.getByRole('combobox', { name: 'Search all clusters' })
const table = (page, name) => page.getByRole('table', { name, exact: true })
const rows = (page) => page.locator('.hits .row:not(.head)')
const waitForAllHits = (page) => page.getByText(/objects? in [\d.]+ ms/).waitFor()
const queryOf = (page) => new URL(page.url()).searchParams.get('q')

async function search(page, q, otherParameters = {}) {
  await page.goto(`/search?${new URLSearchParams({ q, ...otherParameters })}`)
  await waitForAllHits(page)
}

async function openObject(page, name, view = {}) {
  await page.goto(`/object?${new URLSearchParams({ cluster: CONTROL_PLANE, ...DEPLOYMENT, name, ...view })}`)
  await page.locator('.resource h1').waitFor()
}

/** Name of the first pod of an application in a cluster. */
async function readPodName(page, cluster, app) {
  const { items } = await api(page, 'GET', `/apis/cluster.karmada.io/v1alpha1/clusters/${cluster}/proxy${SHOP}/pods?labelSelector=app%3D${app}`)
  return items[0].metadata.name
}

const openPod = async (page, cluster, app, view) => openObject(page, await readPodName(page, cluster, app), { cluster, apiVersion: 'v1', resource: 'pods', ...view })

/** Functions that each show one feature. They may return a function that is called after the picture has been taken. */
const FEATURES = {
  async palette(page) {
    await page.goto('/')
    await searchBox(page).waitFor()
    await page.keyboard.press('Escape')
    await page.keyboard.press('Escape')
    await page.keyboard.press('?')
    const keys = page.getByRole('dialog', { name: 'Keys and query language' })
    await keys.getByText('Change keys').click()
    await keys.getByRole('textbox', { name: 'next result' }).fill('n')
    await assertAccessible(page)
    await page.keyboard.press('Escape')
    await page.keyboard.press('Control+k')
    const dialog = page.getByRole('dialog', { name: 'Commands and short queries' })
    await dialog.getByRole('combobox').fill(':pod shop @west')
    await dialog.getByRole('option', { name: 'kind:pod ns:shop cluster:west' }).first().waitFor()
    return async () => {
      await page.keyboard.press('Enter')
      await waitForAllHits(page)
      assert.equal(queryOf(page), 'kind:pod ns:shop cluster:west')
      await rows(page).first().waitFor()
      await page.keyboard.press('Escape')
      await page.keyboard.press('Escape')
      // The chosen key selects the next result, and the default key does not.
      const active = () => page.getByRole('grid', { name: 'Results' }).getAttribute('aria-activedescendant')
      await page.keyboard.press('j')
      assert.equal(await active(), null)
      await page.keyboard.press('n')
      assert.equal(await active(), 'row-0')
      await page.keyboard.press('?')
      await keys.getByText('Change keys').click()
      await keys.getByRole('button', { name: 'Reset' }).click()
      await page.keyboard.press('Escape')
    }
  },

  async url(page) {
    await search(page, 'kind:deployment ns:shop sort:-name', { columns: 'name,cluster,label:app,.spec.replicas', peek: 'true' })
    await page.getByRole('region', { name: 'Selected result' }).getByRole('heading').first().waitFor()
    const heads = (await page.getByRole('grid', { name: 'Results' }).getByRole('columnheader').allTextContents()).map((head) => head.replace(/[ ↓↑]/g, ''))
    assert.deepEqual(heads, ['Name', 'Cluster', 'app', '.spec.replicas'])
    assert.equal(await searchBox(page).inputValue(), 'kind:deployment ns:shop sort:-name')
  },

  async savedSearches(page) {
    await search(page, 'kind:pod -status:Running')
    await page.getByRole('button', { name: 'Save', exact: true }).click()
    await page.getByLabel('Title').fill('Broken pods')
    await page.getByLabel('Visible to all users who may search').check()
    await page.getByRole('button', { name: 'Save this search' }).click()
    await page.getByRole('button', { name: 'Save this search' }).waitFor({ state: 'detached' })
    // A saved search can be used in queries once the server has received it.
    await waitUntil('a result in the scope', async () => {
      await search(page, 'scope:"Broken pods"')
      return (await rows(page).count()) === 1
    })
    assert.deepEqual(await rows(page).locator('[data-column=name]').allTextContents(), [await readPodName(page, 'west', 'payments')])
    await page.goto('/')
    await page.getByRole('region', { name: 'Saved searches' }).getByRole('link', { name: 'Broken pods' }).scrollIntoViewIfNeeded()
    return async () => {
      await page.goto('/saved')
      await page.getByRole('row', { name: /Broken pods.*shared/ }).getByRole('button', { name: 'Delete' }).click()
      await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click()
      await page.getByRole('row', { name: /Broken pods/ }).waitFor({ state: 'detached' })
    }
  },

  async streaming(page) {
    const response = page.waitForResponse((candidate) => candidate.url().includes('/query?') && candidate.headers()['content-type']?.startsWith('text/event-stream'))
    await search(page, 'ns:shop')
    await response
    await page.getByRole('status').getByText(/^[\d,]+ objects in [\d.]+ ms$/).waitFor()
  },

  async virtualRows(page) {
    await search(page, 'kind:event sort:-last')
    await page.keyboard.press('Escape')
    await page.keyboard.press('Escape')
    await page.keyboard.press('G')
    const grid = page.getByRole('grid', { name: 'Results' })
    await rows(page).and(page.locator('.active')).waitFor()
    const last = Number((await grid.getAttribute('aria-activedescendant')).replace('row-', ''))
    assert.ok((await rows(page).count()) <= last, `all ${last + 1} rows are rendered`)
  },

  async live(page) {
    await page.goto(`/search?${new URLSearchParams({ q: 'kind:configmap ns:shop cluster:"control plane"', live: 'true' })}`)
    await page.locator('.live i.beat').waitFor()
    await page.getByRole('button', { name: 'Pause' }).click()
    await api(page, 'POST', `${SHOP}/configmaps`, { apiVersion: 'v1', kind: 'ConfigMap', metadata: { name: 'new' } })
    await page.getByText('1 change pending').waitFor()
    return async () => {
      await page.getByRole('button', { name: 'Resume' }).click()
      await page.locator('.row.changed', { hasText: 'new' }).waitFor()
      await api(page, 'DELETE', `${SHOP}/configmaps/new`)
    }
  },

  async freshness(page) {
    await page.goto('/fleet')
    for (const cluster of ['east', 'north', 'west']) await page.locator(`tr[data-cluster=${cluster}]`).getByText(/^\d+s ago$/).waitFor()
  },

  async drift(page) {
    // Changes in a member are reverted at once, so the response with the live object is changed instead.
    const liveObjectUrl = /clusters\/west\/proxy\/apis\/apps\/v1\/namespaces\/shop\/deployments\/api$/
    await page.route(liveObjectUrl, async (route) => {
      const response = await route.fetch()
      const object = await response.json()
      object.spec.replicas = 9
      await route.fulfill({ response, json: object })
    })
    await openObject(page, 'api', { tab: 'drift', in: '*' })
    const drift = table(page, 'Drift in all clusters')
    for (const cluster of ['east', 'west']) await drift.getByRole('columnheader', { name: cluster }).waitFor()
    await drift.locator('[data-drift=east]').getByText('In sync').waitFor()
    await drift.locator('[data-drift=west]').getByText('1 field differs').waitFor()
    assert.deepEqual(await drift.locator('tr[data-path="spec.replicas"] td').allTextContents(), ['—', '2 → 9'])
    return () => page.unroute(liveObjectUrl)
  },

  async placement(page) {
    await openObject(page, 'api', { tab: 'placement' })
    await table(page, 'Current scheduling result').locator('tr[data-cluster=north]').getByText('TaintToleration').waitFor()
    const east = table(page, 'Current scheduling result').locator('tr[data-cluster=east]')
    await east.getByText('fits').waitFor()
    assert.match(await east.locator('td').nth(1).textContent(), /^\d+$/)
    await table(page, 'Policies that select it').getByText('won').waitFor()
  },

  async topology(page) {
    // The overview lists the failing pods with the exit code of their last run.
    await openObject(page, 'payments')
    await table(page, 'Failures').locator('td:nth-child(4)').getByText('1', { exact: true }).first().waitFor()
    await openObject(page, 'payments', { tab: 'topology' })
    const tree = page.getByRole('tree', { name: 'Topology of payments' })
    await tree.locator('[data-kind=Pod]').click()
    const exitCode = page.getByRole('region', { name: await readPodName(page, 'west', 'payments') }).getByText(/exit code 1/)
    await exitCode.waitFor()
    // The URL contains the object that is shown.
    await page.waitForURL(/[?&]shown=/)
    await page.reload()
    await exitCode.waitFor()
    for (const kind of ['Deployment', 'PropagationPolicy', 'ResourceBinding', 'Cluster']) await tree.locator(`[data-kind=${kind}]`).first().waitFor()
  },

  async mergedLogs(page) {
    await openObject(page, 'api', { tab: 'logs', tail: '8' })
    for (const cluster of ['east', 'west']) await page.locator('.log .line').filter({ hasText: cluster }).first().waitFor()
    await page.getByText('4 logs').waitFor()
    for (const name of ['Include', 'Exclude', 'Highlight']) await page.getByRole('textbox', { name }).waitFor()
    await page.waitForFunction(() => new Set([...document.querySelectorAll('.log .cluster svg')].map((mark) => mark.outerHTML)).size === 2)
  },

  async logLines(page) {
    await openPod(page, 'west', 'api', { tab: 'logs', timestamps: 'true' })
    await page.locator('.log .line time').first().waitFor()
    await page.getByRole('grid', { name: 'Log' }).focus()
    await page.keyboard.press('Home')
    const line = page.getByRole('region', { name: 'Selected line' })
    await line.getByRole('button', { name: 'Copy link' }).waitFor()
    assert.ok(new URL(page.url()).searchParams.get('line'), 'the URL contains no line')
    for (const name of ['Follow', 'Download']) await page.getByRole('button', { name, exact: true }).waitFor()
    for (const name of ['Wrap lines', 'Merge repeated lines']) await page.getByRole('checkbox', { name }).waitFor()
    await page.getByRole('img', { name: /lines over time, \d+ errors/ }).waitFor()
  },

  async terminal(page) {
    await openPod(page, 'west', 'api', { tab: 'terminal', split: 'true' })
    for (const name of ['Terminal', 'Second terminal']) {
      const terminal = page.getByRole('region', { name, exact: true })
      await terminal.getByText(/^connected: /).waitFor()
      await terminal.getByRole('textbox', { name, exact: true }).focus()
      await page.keyboard.type('echo "in $HOSTNAME"\n')
      await terminal.locator('.xterm-accessibility').getByText(/^in api-/).first().waitFor()
    }
  },

  async related(page) {
    await openObject(page, 'cache', { tab: 'related', cluster: 'west' })
    const graph = page.getByRole('group', { name: 'Related objects' })
    await graph.getByRole('link', { name: /^ReplicaSet · west cache-.*is owned by Deployment cache/ }).first().waitFor()
    const directions = page.getByRole('combobox', { name: 'Show' })
    assert.deepEqual((await directions.locator('option').allTextContents()).slice(1), ['What depends on this?', 'What does this use?'])
  },

  async history(page) {
    await openObject(page, 'api', { tab: 'history' })
    // The row also names the field manager, unless another one wrote at about the same time.
    await table(page, 'Versions').getByText(/^image 1\.4 → 1\.5/).waitFor()
    await page.getByRole('checkbox', { name: /Include \d+ versions with changes of the status only/ }).waitFor()
  },

  /** The cluster's access reviews are replaced with reviews that allow only `get`. */
  async permissions(page) {
    await page.route(/selfsubjectaccessreviews$/, (route) => {
      const { verb, subresource } = JSON.parse(route.request().postData()).spec.resourceAttributes
      const allowed = verb === 'get' && subresource === undefined
      return route.fulfill({ json: { apiVersion: 'authorization.k8s.io/v1', kind: 'SelfSubjectAccessReview', status: { allowed } } })
    })
    await openPod(page, 'west', 'api')
    const button = page.getByRole('button', { name: 'Delete', disabled: true })
    await button.waitFor()
    assert.equal(await button.getAttribute('title'), 'You may not delete pods in shop of west.')
    const link = page.getByRole('link', { name: 'Terminal: You may not create pods/exec in shop of west.' })
    assert.equal(await link.getAttribute('aria-disabled'), 'true')
    await button.hover()
    return () => page.unroute(/selfsubjectaccessreviews$/)
  },

  async clusterIdentity(page) {
    // A page reads these annotations from the index when it is loaded, so it is loaded after the index contains them.
    const cluster = '/apis/cluster.karmada.io/v1alpha1/clusters/west'
    const annotate = (annotations) => api(page, 'PATCH', cluster, { metadata: { annotations } })
    await annotate({ 'ui.crowsnest.io/warning': 'Production: changes need a ticket.', 'ui.crowsnest.io/read-only': 'true' })
    await waitUntil('the search to find the annotation', async () => (await api(page, 'GET', '/apis/search.crowsnest.io/v1alpha1/count?q=kind:cluster%20ann:ui.crowsnest.io/read-only')).total === 1)
    await search(page, 'kind:pod ns:shop sort:cluster')
    const marks = await rows(page).locator('.cluster').evaluateAll((elements) => Object.fromEntries(elements.map((element) => [element.textContent, element.querySelector('svg').outerHTML])))
    assert.deepEqual(Object.keys(marks).sort(), ['east', 'west'])
    assert.notEqual(marks.east, marks.west)
    await openPod(page, 'west', 'api')
    await page.getByRole('note').getByText(/Production: changes need a ticket\. It is marked as read-only/).waitFor()
    await page.getByRole('button', { name: 'Delete', disabled: true }).waitFor()
    await page.getByRole('link', { name: /^Terminal: You may not/ }).waitFor()
    return () => annotate({ 'ui.crowsnest.io/warning': null, 'ui.crowsnest.io/read-only': null })
  },

  async safeWrites(page) {
    await openObject(page, 'cache')
    await page.getByRole('button', { name: 'Scale' }).click()
    const dialog = page.getByRole('dialog', { name: 'Scale Deployment cache' })
    await dialog.getByRole('spinbutton').fill('2')
    await dialog.getByText('The cluster accepts this (dry run).').waitFor()
    await dialog.locator('.cluster').waitFor()
    return async () => {
      await dialog.getByRole('button', { name: 'Scale' }).click()
      await page.getByText('Scaled to 2.').waitFor()
      await page.getByRole('button', { name: 'Undo' }).click()
      await page.getByText('Scaled to 1.').waitFor()
    }
  },

  async dark(page) {
    await page.emulateMedia({ colorScheme: 'dark' })
    await page.goto('/')
    await page.getByRole('region', { name: 'Needs attention' }).waitFor()
    await page.locator('article[data-cluster=west]').getByRole('meter').first().waitFor()
    // A state has a glyph and a text in addition to its colour.
    assert.match(await page.locator('article[data-cluster=west] .pill').textContent(), /^✓ Ready$/)
    return () => page.emulateMedia({ colorScheme: 'light' })
  },

  async columns(page) {
    await search(page, 'kind:deployment ns:shop')
    await page.getByRole('button', { name: 'Export' }).click()
    const [file] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: 'These columns (CSV)' }).click()])
    assert.match((await readFile(await file.path(), 'utf8')).split('\r\n')[0], /^cluster,namespace,name,/)
    await page.keyboard.press('Escape')
    await page.getByRole('button', { name: 'Columns', exact: true }).click()
    const panel = page.getByRole('group', { name: 'Columns', exact: true })
    for (const button of ['Move Name forward', 'Reset']) await panel.getByRole('button', { name: button }).waitFor()
    await panel.getByRole('combobox', { name: 'Label or .path' }).waitFor()
    for (const name of ['Wide', 'Copy as command']) await page.getByRole('button', { name, exact: true }).waitFor()
  },
}

const [address, pictures] = process.argv.slice(2)
await runSignedIn(
  address,
  async (page) => {
    const features = Object.entries(FEATURES)
    assert.equal(features.length, 20)
    // A failure does not stop the loop, so that one run shows all failures.
    const failures = []
    for (const [nth, [name, show]] of features.entries()) {
      try {
        const after = await show(page)
        await assertAccessible(page)
        await takePicture(page, `scorecard/${String(nth + 1).padStart(2, '0')}`)
        await after?.()
      } catch (error) {
        failures.push(`${nth + 1} ${name}: ${error.stack}`)
      }
    }
    assert.deepEqual(failures, [])
  },
  { pictures, contextOptions: { ...CONTEXT, baseURL: new URL(address).origin } },
)
