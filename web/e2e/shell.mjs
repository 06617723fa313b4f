// Elements of all views and tools for search results: navigation, breadcrumbs, drawer, histogram, time selection, and the layout on a phone.
// Run by quickstart.mjs, or alone: node e2e/shell.mjs <address with token> <folder for screenshots>
import assert from 'node:assert/strict'
import { join } from 'node:path'
import { assertAccessible, isMain, setPreference, runSignedIn } from './browser.mjs'
import { readRoutes } from './routes.mjs'

const WEB = 'cluster=%40control-plane&apiVersion=apps%2Fv1&resource=deployments&namespace=default&name=web'
/** Views whose content must fit the screen of a phone. */
const VIEWS = ['/', '/search?q=kind%3Apod', '/saved', '/fleet', '/fleet/nodes', '/fleet/events', '/cluster/member1', '/steer', '/steer/bindings', '/steer/failover', '/steer/quotas', `/object?${WEB}`, `/object?${WEB}&tab=placement`, `/object?${WEB}&tab=drift`, `/object?${WEB}&tab=related&side=dependents&as=graph`, `/object?${WEB}&tab=related&side=dependents&as=tree`, '/paths?p=deploy/default/web%20-OWNS*..3-%3E%20pod', '/who-can?verb=get&resource=secrets', '/assistants']

/** Views that are not in `VIEWS`. The last three are pages of their own only if the URL names no object; otherwise they redirect to one of its tabs. */
const OTHER_VIEWS = ['/fleet/join', '/steer/rebalance', '/policy?kind=PropagationPolicy&namespace=default&name=web', '/plan', '/why', '/topology', '/drift']
/** Maximum number of times that Tab is pressed to get from the search box to the results. */
const MAX_TABS_TO_RESULTS = 12

/** Checks all features on a signed-in page. */
export async function checkShell(page, origin, pictures) {
  await checkNavigation(page, origin)
  await checkDrawer(page, origin, pictures)
  await checkRowKeys(page, origin)
  await checkTabStops(page, origin)
  await checkHistogram(page, origin, pictures)
  await checkBulkActions(page, origin, pictures)
  await checkObjectPage(page, origin, pictures)
  await checkAnalysisViews(page, origin, pictures)
  await checkDensity(page, origin)
  await checkPhoneLayout(page, origin, pictures)
  await checkOtherViews(page, origin)
}

const queryOf = (page) => new URL(page.url()).searchParams.get('q')

async function checkNavigation(page, origin) {
  await page.goto(`${origin}/cluster/member1`)
  const main = page.getByRole('navigation', { name: 'Main' })
  const crumbs = page.getByRole('navigation', { name: 'Breadcrumbs' })
  await crumbs.getByText('member1').waitFor()
  await crumbs.getByRole('link', { name: 'Fleet' }).click()
  await page.waitForURL(`${origin}/fleet`)
  assert.equal(await main.getByRole('link', { name: 'Fleet' }).getAttribute('aria-current'), 'page')
  // In a narrow navigation, the links keep their accessible names.
  await main.getByRole('button', { name: 'Narrow menu' }).click()
  await page.locator('.frame[data-rail=narrow]').waitFor()
  assert.equal((await main.boundingBox()).width, 56)
  await assertAccessible(page)
  await main.getByRole('link', { name: 'Propagation' }).click()
  await page.waitForURL(`${origin}/steer`)
  await main.getByRole('button', { name: 'Widen menu' }).click()
  // The breadcrumbs of an object link to searches for the objects in its cluster, in its namespace and of its kind.
  await page.goto(`${origin}/object?${WEB}`)
  await crumbs.getByRole('link', { name: 'deployments' }).click()
  await page.waitForURL(/\/search\?/)
  assert.equal(queryOf(page), 'kind:deployments.apps cluster:@control-plane ns:default')
}

/** The drawer shows the selected result; the Back button restores the selection in the list. */
async function checkDrawer(page, origin, pictures) {
  await page.goto(`${origin}/search?q=${encodeURIComponent('kind:pod label:app=web sort:name,cluster')}`)
  await page.locator('#row-1 [data-column=name]').waitFor()
  await page.keyboard.press('Escape')
  await page.keyboard.press('Escape')
  await page.keyboard.press('j')
  await page.keyboard.press('Space')
  await page.waitForURL(/peek=true/)
  const peek = page.getByRole('region', { name: 'Selected result' })
  const nameOf = (row) => page.locator(`#row-${row} [data-column=name]`).textContent()
  await peek.getByRole('heading', { name: await nameOf(0) }).waitFor()
  await peek.getByRole('table', { name: 'Containers' }).waitFor()
  await page.keyboard.press('j')
  await peek.getByRole('heading', { name: await nameOf(1) }).waitFor()
  await assertAccessible(page)
  await page.screenshot({ path: join(pictures, 'peek.png') })
  await page.keyboard.press('l')
  await page.waitForURL(/tab=logs/)
  await page.goBack()
  await peek.getByRole('heading', { name: await nameOf(1) }).waitFor()
  assert.equal(await page.getByRole('grid', { name: 'Results' }).getAttribute('aria-activedescendant'), 'row-1')
  await page.keyboard.press('y')
  await page.waitForURL(/tab=yaml/)
  await page.goBack()
  await peek.getByRole('heading', { name: await nameOf(1) }).waitFor()
  await page.keyboard.press('Escape')
  await peek.waitFor({ state: 'detached' })
}

/** The key e opens the editor of the selected result, and s the dialog that scales it. The Back button returns to the row. */
async function checkRowKeys(page, origin) {
  await page.goto(`${origin}/search?q=${encodeURIComponent('kind:deployment name:=web cluster:member1,member2 sort:cluster')}`)
  await page.locator('#row-1 [data-column=name]').waitFor()
  for (const key of ['Escape', 'Escape', 'j', 'j']) await page.keyboard.press(key)
  const active = page.locator('#row-1.active')
  await active.waitFor()
  await page.keyboard.press('e')
  await page.waitForURL((url) => url.searchParams.get('tab') === 'yaml' && url.searchParams.get('edit') === 'true')
  await page.getByRole('button', { name: 'Preview' }).waitFor()
  assert.equal(new URL(page.url()).searchParams.get('cluster'), 'member2')
  await page.goBack()
  await active.waitFor()
  await page.keyboard.press('s')
  const dialog = page.getByRole('dialog', { name: 'Scale Deployment web' })
  await dialog.getByText('The cluster accepts this (dry run).').waitFor()
  await dialog.getByText('member2', { exact: true }).waitFor()
  await page.keyboard.press('Escape')
  await dialog.waitFor({ state: 'detached' })
  // Closing the dialog replaces the URL in the browser's history, so that Back leads to the results.
  await page.waitForURL((url) => !url.searchParams.has('do'))
  await page.goBack()
  await active.waitFor()
}

/** There are few tab stops between the search box and the results, although facets have many values. A link skips these stops. */
async function checkTabStops(page, origin) {
  await page.goto(`${origin}/search?q=${encodeURIComponent('kind:pod OR kind:node OR kind:event')}`)
  await page.getByRole('listbox', { name: /^Results over time/ }).waitFor()
  await page.getByRole('complementary', { name: 'Facets' }).getByRole('button').first().waitFor()
  const box = page.getByRole('combobox', { name: 'Search all clusters' })
  const grid = page.getByRole('grid', { name: 'Results' })
  const hasFocus = async (element) => (await element.and(page.locator(':focus')).count()) > 0
  assert.ok(await hasFocus(box), 'the search box is not focused')
  let presses = 0
  for (; !(await hasFocus(grid)) && presses <= MAX_TABS_TO_RESULTS; presses += 1) await page.keyboard.press('Tab')
  assert.ok(presses <= MAX_TABS_TO_RESULTS, `the results are not reached by pressing Tab ${MAX_TABS_TO_RESULTS} times`)
  await page.keyboard.press('j')
  await page.locator('#row-0.active').waitFor()
  await page.keyboard.press('/')
  assert.ok(await hasFocus(box), 'the search box is not focused')
  await page.keyboard.press('Shift+Tab')
  assert.ok(await hasFocus(page.getByRole('link', { name: 'Skip to results' })), 'the skip link is not focused')
  await page.keyboard.press('Enter')
  await grid.and(page.locator(':focus')).waitFor()
}

async function checkHistogram(page, origin, pictures) {
  await page.goto(`${origin}/search?q=${encodeURIComponent('kind:pod')}`)
  const bars = page.getByRole('listbox', { name: /^Results over time: [\d,]+$/ })
  await bars.waitFor()
  assert.equal(await bars.getByRole('option').count(), 30)
  await assertAccessible(page)
  await page.screenshot({ path: join(pictures, 'histogram.png') })
  // Select the last two bars with the keyboard.
  await bars.focus()
  await page.keyboard.press('End')
  await page.keyboard.press('Shift+ArrowLeft')
  assert.equal(await bars.locator('[aria-selected=true]').count(), 2)
  await page.keyboard.press('Enter')
  await page.waitForURL((url) => /^kind:pod changed:\S+Z\.\.\S+Z$/.test(url.searchParams.get('q') ?? ''))
  await page.getByText(/objects? in [\d.]+ ms/).waitFor()
  // Select bars of Events with the mouse.
  await page.goto(`${origin}/search?q=${encodeURIComponent('kind:event last:<1h')}`)
  await bars.waitFor()
  const { x, y, width } = await bars.boundingBox()
  await page.mouse.move(x + width / 2, y + 30)
  await page.mouse.down()
  await page.mouse.move(x + width - 4, y + 30, { steps: 4 })
  await page.mouse.up()
  await page.waitForURL((url) => /^kind:event during:/.test(url.searchParams.get('q') ?? ''))
  await page.getByRole('note').getByText(/another time/).waitFor()
  await page.getByRole('button', { name: /^Time: at / }).click()
  await page.getByRole('button', { name: 'last hour' }).click()
  await page.waitForURL((url) => url.searchParams.get('q') === 'kind:event last:<1h')
}

/** An action on several selected results is checked with a dry run in each cluster before it can be confirmed. */
async function checkBulkActions(page, origin, pictures) {
  await page.goto(`${origin}/search?q=${encodeURIComponent('kind:deployment name:=web cluster:member1,member2')}`)
  await page.locator('#row-1 [data-column=name]').waitFor()
  await page.keyboard.press('Escape')
  await page.keyboard.press('Escape')
  for (const key of ['j', 'x', 'j', 'x']) await page.keyboard.press(key)
  await page.getByRole('status').getByText('2 results selected').waitFor()
  assert.equal(await page.getByRole('row', { selected: true }).count(), 2)
  await page.getByRole('button', { name: 'Restart…' }).click()
  const dialog = page.getByRole('dialog', { name: 'Restart 2 workloads' })
  await dialog.locator('tr[data-state=accepted]').nth(1).waitFor()
  const run = dialog.getByRole('button', { name: 'Restart', exact: true })
  assert.match(await run.getAttribute('title'), /Type the number of objects/)
  await assertAccessible(page)
  await page.screenshot({ path: join(pictures, 'several.png') })
  await dialog.getByRole('textbox', { name: 'Type 2 to confirm' }).fill('2')
  assert.equal(await run.getAttribute('aria-disabled'), null)
  await dialog.getByRole('button', { name: 'Cancel' }).click()
  await page.getByRole('button', { name: 'Clear the selection' }).click()
  await page.getByRole('region', { name: /results? selected/ }).waitFor({ state: 'detached' })
}

/** The page of an object links to its copies and to all its views. */
async function checkObjectPage(page, origin, pictures) {
  await page.goto(`${origin}/object?${WEB}`)
  const copies = page.getByRole('navigation', { name: 'In other clusters' })
  await copies.getByRole('link', { name: 'member2 2/2' }).waitFor()
  const tabs = page.getByRole('navigation', { name: 'Views of this object' })
  assert.deepEqual((await tabs.getByRole('link').allTextContents()).slice(0, 4), ['Overview', 'Placement', 'Topology', 'Drift'])
  await assertAccessible(page)
  await page.screenshot({ path: join(pictures, 'object-page.png') })
  await tabs.getByRole('link', { name: 'Placement', exact: true }).click()
  await page.getByRole('table', { name: 'Targets' }).waitFor()
  await copies.getByRole('link', { name: 'member2 2/2' }).click()
  await page.waitForURL(/cluster=member2/)
  await tabs.getByRole('link', { name: 'Drift' }).click()
  await page.getByRole('heading', { name: /Drift in member2/ }).waitFor()
}

/** The views Paths, Who can and Assistants, which the palette opens by name. */
async function checkAnalysisViews(page, origin, pictures) {
  const dialog = page.getByRole('dialog', { name: 'Commands and short queries' })
  const choose = async (name) => {
    await page.keyboard.press('Control+k')
    await dialog.getByRole('combobox').fill(name)
    await dialog.getByRole('option', { name: new RegExp(`^${name}: `) }).click()
  }
  await choose('Paths')
  await page.waitForURL(`${origin}/paths`)
  await assertAccessible(page)
  const pattern = 'deploy/default/web -OWNS*..3-> pod'
  await page.getByRole('textbox', { name: 'Pattern' }).fill(pattern)
  await page.getByRole('button', { name: 'Find', exact: true }).click()
  const tree = page.getByRole('tree', { name: `Paths that match ${pattern}` })
  await tree.locator('[data-kind=Pod]').first().waitFor()
  await tree.getByRole('treeitem', { name: /ReplicaSet OWNS →/ }).first().waitFor()
  await assertAccessible(page)
  await page.screenshot({ path: join(pictures, 'paths.png') })
  await page.goto(`${origin}/object?${WEB}&tab=related&side=dependents`)
  await page.getByRole('table', { name: 'What depends on this?' }).getByRole('row', { name: /ResourceBinding/ }).first().waitFor()
  await page.getByRole('button', { name: 'As a graph' }).click()
  await page.getByRole('region', { name: 'Related objects' }).getByRole('link', { name: /^ResourceBinding/ }).waitFor()
  await assertAccessible(page)
  await page.getByRole('button', { name: 'As a tree' }).click()
  const dependents = page.getByRole('tree', { name: 'What depends on this?' })
  await dependents.getByRole('treeitem', { name: /^ResourceBinding/ }).first().waitFor()
  await assertAccessible(page)
  await page.screenshot({ path: join(pictures, 'dependents.png') })
  const root = dependents.getByRole('treeitem', { level: 1 })
  await root.focus()
  await page.keyboard.press('ArrowLeft')
  await dependents.getByRole('treeitem', { level: 1, expanded: false }).waitFor()
  assert.equal(await dependents.getByRole('treeitem').count(), 1)
  await page.keyboard.press('ArrowRight')
  await page.keyboard.press('ArrowRight')
  await dependents.getByRole('treeitem', { level: 2 }).first().and(page.locator(':focus')).waitFor()
  await choose('Who can')
  await page.getByRole('textbox', { name: 'Resource, or URL path' }).fill('secrets')
  await page.getByRole('button', { name: 'Review', exact: true }).click()
  await page.waitForURL(`${origin}/who-can?verb=get&resource=secrets`)
  await page.getByRole('table', { name: 'Grants' }).getByRole('row', { name: /member1.*Group system:masters.*cluster-admin/ }).waitFor()
  await assertAccessible(page)
  await page.getByRole('table', { name: 'Grants' }).getByRole('link', { name: 'Group system:masters' }).first().click()
  await page.waitForURL(`${origin}/who-can?subject=group%2Fsystem%3Amasters`)
  await page.getByRole('table', { name: 'Grants' }).getByRole('row', { name: /member1.*Group system:masters/ }).first().waitFor()
  await assertAccessible(page)
  await page.goto(`${origin}/object?${WEB}`)
  await page.getByRole('link', { name: 'Access', exact: true }).click()
  await page.waitForURL((url) => url.pathname === '/who-can' && url.searchParams.get('name') === 'web')
  await page.getByRole('table', { name: 'Grants' }).getByRole('row', { name: /Group system:masters/ }).first().waitFor()
  await assertAccessible(page)
  await choose('Assistants')
  await page.getByText('claude mcp add crowsnest -- crowsnest mcp').waitFor()
  await assertAccessible(page)
}

async function checkDensity(page, origin) {
  await page.goto(`${origin}/search?q=${encodeURIComponent('kind:pod')}`)
  const row = page.locator('.hits .row:not(.head)').first()
  await row.waitFor()
  assert.equal((await row.boundingBox()).height, 28)
  await setPreference(page, 'Density', 'comfortable')
  await page.waitForFunction(() => document.querySelector('.hits .row:not(.head)')?.getBoundingClientRect().height === 36)
  await setPreference(page, 'Density', 'compact')
}

/** Waits until the content of a view is complete. */
async function waitForContent(page) {
  await page.locator('main').locator('h1, h2, p').first().waitFor({ state: 'attached' })
  // A page with a stream always has an open request, so wait until no placeholder is left.
  await page.waitForFunction(() => document.querySelector('main .skeleton') === null)
}

/** Checks the views that `checkPhoneLayout` does not check. Together, both check all views that the page defines; signin.mjs checks unknown paths. */
async function checkOtherViews(page, origin) {
  const views = [...VIEWS, ...OTHER_VIEWS].map((view) => view.replace(/\?.*/, ''))
  assert.deepEqual((await readRoutes()).filter((route) => !views.some((view) => route.test(view))), [], 'views that are not checked')
  for (const view of OTHER_VIEWS) {
    await page.goto(origin + view)
    await waitForContent(page)
    await assertAccessible(page)
  }
}

/** No view is wider than the screen; the navigation is at the bottom. */
async function checkPhoneLayout(page, origin, pictures) {
  const before = page.viewportSize()
  await page.setViewportSize({ width: 390, height: 844 })
  for (const view of VIEWS) {
    await page.goto(origin + view)
    await waitForContent(page)
    assert.ok((await page.evaluate(() => document.documentElement.scrollWidth)) <= 390, `${view} is wider than a phone`)
    await assertAccessible(page)
  }
  await page.goto(origin)
  await page.locator('.verdict').waitFor()
  await page.screenshot({ path: join(pictures, 'phone.png') })
  await page.getByRole('navigation', { name: 'Main' }).getByRole('link', { name: 'Fleet' }).click()
  await page.waitForURL(`${origin}/fleet`)
  await page.setViewportSize(before)
}

if (isMain(import.meta)) {
  const [address, pictures] = process.argv.slice(2)
  await runSignedIn(address, (page, origin) => checkShell(page, origin, pictures), { pictures })
}
