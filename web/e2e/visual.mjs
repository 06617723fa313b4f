// Compares screenshots of twelve views, in both themes and on two screens, with the expected ones in the folder `visual`.
// Run by tests/tests/visual.rs, which prepares the fleet: node e2e/visual.mjs <address with token> <folder for screenshots>
// With UPDATE_SCREENSHOTS=1, it replaces expected screenshots that differ.
import assert from 'node:assert/strict'
import { mkdir, readdir } from 'node:fs/promises'
import { dirname, join, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import { runSignedIn } from './browser.mjs'
import { Expectation } from './screenshots.mjs'
import { CONTEXT, FLAGS, prepare, takeScreenshot } from './reproducible-pages.mjs'

const EXPECTED = join(dirname(fileURLToPath(import.meta.url)), 'visual')
const WEB = '/object?cluster=%40control-plane&apiVersion=apps%2Fv1&resource=deployments&namespace=shop&name=web'
const tableOf = (page, name) => page.getByRole('table', { name, exact: true })

/**
 * Views by the name of their screenshots: the path, an element that is shown once the data has arrived, and elements that differ between
 * runs. Values that differ within a text are replaced by `takeScreenshot`.
 */
const VIEWS = {
  home: {
    path: '/',
    ready: (page) => page.locator('article[data-cluster=west]').getByRole('meter', { name: 'CPU requested, west' }),
    // The order of the changes differs between runs.
    masks: (page) => [page.getByRole('region', { name: 'Recent changes' }).getByRole('list')],
  },
  search: {
    path: `/search?q=${encodeURIComponent('kind:pod ns:shop sort:cluster,name')}`,
    // The histogram is shown after the results.
    ready: (page) => page.getByRole('listbox', { name: /^Results over time/ }),
    masks: (page) => [page.getByRole('listbox', { name: /^Results over time/ }), page.locator('.ends')],
  },
  object: { path: WEB, ready: (page) => tableOf(page, 'Containers') },
  placement: { path: `${WEB}&tab=placement`, ready: (page) => tableOf(page, 'Targets').locator('tr[data-target=west]') },
  topology: { path: `${WEB}&tab=topology`, ready: (page) => page.locator('[data-kind=Pod]').nth(3) },
  drift: { path: `${WEB}&tab=drift`, ready: (page) => page.locator('main .pill', { hasText: 'In sync' }) },
  yaml: {
    path: `${WEB}&tab=yaml`,
    ready: (page) => page.locator('.editor .cm-line').first(),
    masks: (page) => [page.locator('.editor .cm-line', { hasText: /permanent-id|Timestamp|resourceVersion|uid|Time:/ })],
  },
  fleet: {
    path: '/fleet',
    ready: (page) => page.getByRole('meter', { name: 'CPU requested, west' }),
    // The number of objects includes Events.
    masks: (page) => [tableOf(page, 'Clusters').locator('tr[data-cluster] td:nth-last-child(3)')],
  },
  cluster: {
    path: '/cluster/east',
    ready: (page) => {
      const [used, requested] = [tableOf(page, 'Capacity').getByRole('meter', { name: 'cpu used' }), tableOf(page, 'Nodes').getByRole('meter', { name: /^CPU requested in / })]
      return page.locator('main').filter({ has: used }).filter({ has: requested })
    },
    // Simulated usage depends on the time and on UIDs.
    masks: (page) => [tableOf(page, 'Capacity').locator('td:nth-child(3)')],
  },
  policies: { path: '/steer', ready: (page) => tableOf(page, 'Policies').locator('tr[data-policy="shop/west"]') },
  // Only paths in one cluster, because the order of clusters depends on UIDs.
  paths: {
    path: `/paths?p=${encodeURIComponent('(:Deployment {name: "web", namespace: "shop", cluster: "east"})-[:OWNS*..3]->(:Pod)')}`,
    ready: (page) => page.getByRole('tree').locator('[data-kind=Pod]').nth(1),
  },
  'who-can': { path: '/who-can?verb=get&resource=secrets', ready: (page) => tableOf(page, 'Grants').getByRole('row', { name: /west/ }).first() },
}
const THEMES = ['light', 'dark']
/** Screen sizes by the width that the names of their screenshots contain. */
const SCREENS = { 390: { width: 390, height: 844 }, 1440: { width: 1440, height: 900 } }

/** Compares the screenshots of all views, even if some differ, so that one run shows all differences. */
async function compareViews(page, origin, actualFolder) {
  await prepare(page)
  const differences = []
  const names = []
  for (const [width, screen] of Object.entries(SCREENS)) {
    await page.setViewportSize(screen)
    for (const theme of THEMES) {
      await page.emulateMedia({ colorScheme: theme, reducedMotion: 'reduce' })
      for (const [view, { path, ready, masks = () => [] }] of Object.entries(VIEWS)) {
        await page.goto(origin + path)
        await ready(page).first().waitFor()
        const name = `${view}-${theme}-${width}`
        names.push(`${name}.png`)
        const expectation = new Expectation(EXPECTED, actualFolder, name)
        const difference = await expectation.compare(() => takeScreenshot(page, masks(page)))
        if (difference) differences.push(difference)
      }
    }
  }
  assert.ok(differences.length === 0, `${differences.length} of ${names.length} screenshots differ:\n${differences.join('\n')}\nif this is intended: UPDATE_SCREENSHOTS=1 cargo test -p crowsnest --test system visual::`)
  const unused = (await readdir(EXPECTED)).filter((file) => !names.includes(file))
  assert.deepEqual(unused, [], 'expected screenshots that belong to no view')
}

const [address, pictures] = process.argv.slice(2)
const actualFolder = resolve(pictures, 'visual')
await mkdir(actualFolder, { recursive: true })
await runSignedIn(address, (page, origin) => compareViews(page, origin, actualFolder), { pictures: actualFolder, flags: FLAGS, contextOptions: CONTEXT })
