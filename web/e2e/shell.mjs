// The frame of all views and the tools of results: navigation, breadcrumbs, drawer, histogram, time, and a phone's screen.
// As part of the quickstart, or alone: node e2e/shell.mjs <address with token> <folder for screenshots>
import assert from 'node:assert/strict'
import { join } from 'node:path'
import { assertAccessible, isMain, setPreference, walkSignedIn } from './browser.mjs'

const WEB = 'cluster=%40control-plane&apiVersion=apps%2Fv1&resource=deployments&namespace=default&name=web'
/** Views whose content must fit the screen of a phone. */
const VIEWS = ['/', '/search?q=kind%3Apod', '/saved', '/fleet', '/fleet/nodes', '/fleet/events', '/cluster/member1', '/steer', '/steer/bindings', '/steer/failover', '/steer/quotas', `/object?${WEB}`, `/object?${WEB}&tab=placement`, `/object?${WEB}&tab=drift`, `/object?${WEB}&tab=related&side=dependents&as=graph`, '/paths?p=deploy/default/web%20-OWNS*..3-%3E%20pod', '/who-can?verb=get&resource=secrets', '/assistants']

/** Walks through all features, on a page that is signed in. */
export async function shell(page, origin, pictures) {
  await navigation(page, origin)
  await drawer(page, origin, pictures)
  await overTime(page, origin, pictures)
  await bulkActions(page, origin, pictures)
  await objectPage(page, origin, pictures)
  await analysis(page, origin, pictures)
  await density(page, origin)
  await phone(page, origin, pictures)
}

const queryOf = (page) => new URL(page.url()).searchParams.get('q')

async function navigation(page, origin) {
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
  // Each part of an object's identity leads to the objects that share it.
  await page.goto(`${origin}/object?${WEB}`)
  await crumbs.getByRole('link', { name: 'deployments' }).click()
  await page.waitForURL(/\/search\?/)
  assert.equal(queryOf(page), 'kind:deployments cluster:@control-plane ns:default')
}

/** The drawer follows the selection; Back restores the position of the list. */
async function drawer(page, origin, pictures) {
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

async function overTime(page, origin, pictures) {
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

/** Several results are marked; the action is checked in each cluster before it can be confirmed. */
async function bulkActions(page, origin, pictures) {
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

/** State, copies and all views of an object on one page. */
async function objectPage(page, origin, pictures) {
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

/** Paths between objects, access and assistants, by their names in the palette. */
async function analysis(page, origin, pictures) {
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

async function density(page, origin) {
  await page.goto(`${origin}/search?q=${encodeURIComponent('kind:pod')}`)
  const row = page.locator('.hits .row:not(.head)').first()
  await row.waitFor()
  assert.equal((await row.boundingBox()).height, 28)
  await setPreference(page, 'Density', 'comfortable')
  await page.waitForFunction(() => document.querySelector('.hits .row:not(.head)')?.getBoundingClientRect().height === 36)
  await setPreference(page, 'Density', 'compact')
}

/** No view is wider than the screen; the navigation is at the bottom. */
async function phone(page, origin, pictures) {
  const before = page.viewportSize()
  await page.setViewportSize({ width: 390, height: 844 })
  for (const view of VIEWS) {
    await page.goto(origin + view)
    await page.locator('main').locator('h1, h2, p').first().waitFor({ state: 'attached' })
    // Pages with a stream are never without a request; their content has arrived when no placeholder is left.
    await page.waitForFunction(() => document.querySelector('main .skeleton') === null)
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
  await walkSignedIn(address, (page, origin) => shell(page, origin, pictures), { pictures })
}
