// The page of an object: overview, manifest, edits and conflicts, Secrets, events, related objects, history, logs, terminal, commands, actions.
// Run by quickstart.mjs, or alone: node e2e/object.mjs <address with token> <folder for screenshots>
// The fleet has a Deployment `web` with two pods in each of three members, and another image in member2.
import assert from 'node:assert/strict'
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { assertAccessible, api, removeExpected, isMain, paste, setPreference, runSignedIn } from './browser.mjs'
import { checkLogPosition } from './logs.mjs'

const MEMBER = '/apis/cluster.karmada.io/v1alpha1/clusters/member1/proxy'
const CONTROL_PLANE = '@control-plane'
const MAX_HEAP_BYTES = 150 << 20

/** Checks all tabs on a signed-in page. `problems` is the list to which `runInBrowser` adds the errors that the page logs. */
export async function checkObject(page, origin, pictures, problems) {
  await page.goto(origin)
  const pod = await readPodName(page)
  await checkOverview(page, origin, pod, pictures)
  await checkManifest(page, origin, pod, pictures)
  await checkEdit(page, origin, pictures, problems)
  await checkConflict(page, origin, pictures, problems)
  await checkSecret(page, origin, pictures)
  await checkEvents(page, origin, pod)
  await checkRelated(page, origin, pictures)
  await checkHistory(page, origin, pictures)
  await checkLogs(page, origin, pod, pictures)
  await checkManyLines(page, origin, pod)
  await checkLogPosition(page, origin, pod)
  await checkTerminal(page, origin, pod, pictures)
  await checkCommands(page, origin, pod)
  await checkActions(page, origin, pictures, problems)
  await checkDisabledActions(page, origin, pod)
  await checkLanguages(page, origin, pod)
  // Restore the previous state.
  for (const path of [`configmaps/${EDITED}`, 'secrets/hidden']) await api(page, 'DELETE', `${MEMBER}/api/v1/namespaces/default/${path}`)
}

/** Name of a pod of the Deployment `web` in member1. */
async function readPodName(page) {
  const { items } = await api(page, 'GET', `${MEMBER}/api/v1/namespaces/default/pods?labelSelector=app%3Dweb`)
  return items[0].metadata.name
}

async function show(page, origin, { cluster = 'member1', apiVersion = 'v1', resource, namespace = 'default', name, ...view }) {
  const parameters = new URLSearchParams({ cluster, apiVersion, resource, namespace, name, ...view })
  await page.goto(`${origin}/object?${parameters}`)
  await page.locator('.resource h1').waitFor()
}

const WEB = { apiVersion: 'apps/v1', resource: 'deployments', name: 'web' }
const parameter = (page, name) => new URL(page.url()).searchParams.get(name)
const waitForParameter = (page, name, value) => page.waitForURL((url) => url.searchParams.get(name) === value)

async function checkOverview(page, origin, pod, pictures) {
  await show(page, origin, { resource: 'pods', name: pod })
  await page.getByRole('table', { name: 'Conditions' }).getByRole('row', { name: /^Ready True/ }).waitFor()
  await page.getByRole('table', { name: 'Containers' }).getByRole('link', { name: 'nginx:1.25' }).waitFor()
  await page.getByRole('table', { name: 'Containers' }).getByRole('cell', { name: '80/TCP' }).waitFor()
  await page.getByText('podIP').waitFor()
  assert.match(await page.getByRole('link', { name: 'app=web' }).getAttribute('href'), /label%3Aapp%3Dweb/)
  await assertAccessible(page)
  await page.screenshot({ path: join(pictures, 'object.png') })
  await page.emulateMedia({ colorScheme: 'dark' })
  await assertAccessible(page)
  await page.screenshot({ path: join(pictures, 'object-dark.png') })
  await page.emulateMedia({ colorScheme: 'light' })
  // The owner is a link, and the Back button returns to the pod.
  await page.getByRole('link', { name: /^ReplicaSet web-/ }).click()
  await page.getByRole('heading', { name: /^ReplicaSet web-/ }).waitFor()
  await page.goBack()
  await page.getByRole('heading', { name: `Pod ${pod}` }).waitFor()
}

async function checkManifest(page, origin, pod, pictures) {
  await show(page, origin, { resource: 'pods', name: pod, tab: 'yaml' })
  const code = page.locator('.editor')
  await code.getByText('metadata', { exact: true }).waitFor()
  assert.ok(!(await code.locator('.cm-content').textContent()).includes('managedFields'), 'managedFields are shown')
  await page.getByRole('checkbox', { name: 'Show managedFields' }).check()
  await waitForParameter(page, 'managed', 'true')
  await code.getByText('managedFields', { exact: true }).waitFor()
  await page.getByRole('checkbox', { name: 'Show managedFields' }).uncheck()
  await code.locator('span[title="Fold line"]').filter({ visible: true }).first().click()
  await code.locator('.cm-foldPlaceholder').waitFor()
  await assertAccessible(page)
  await code.locator('.cm-foldPlaceholder').click()
  await code.locator('.cm-foldPlaceholder').waitFor({ state: 'detached' })
  // The URL contains the text that is searched for.
  await page.getByRole('button', { name: 'Find' }).click()
  await code.locator('input[name=search]').pressSequentially('containers')
  await waitForParameter(page, 'find', 'containers')
  await page.keyboard.press('Enter')
  await code.locator('.cm-searchMatch').first().waitFor()
  // The page's shortcut keys are text in the editor.
  await code.locator('input[name=search]').pressSequentially('?/:')
  assert.equal(await page.getByRole('dialog').count(), 0)
  await page.goto(page.url().replace(/find=[^&]*/, 'find=containers'))
  await code.locator('.cm-searchMatch').first().waitFor()
  await assertAccessible(page)
  await page.screenshot({ path: join(pictures, 'manifest.png') })
}

/** A new name in each run, so that the object has its own history. */
const EDITED = `edited-${Date.now().toString(36)}`
const CONFIG = { apiVersion: 'v1', kind: 'ConfigMap', metadata: { name: EDITED }, data: { colour: 'red', size: 'small' } }

/** Replaces the text in the editor with the result of `change`. */
async function rewriteManifest(page, change) {
  const content = page.locator('.edit .editor .cm-content')
  await content.waitFor()
  const text = (await content.locator('.cm-line').allTextContents()).join('\n')
  await content.click()
  await page.keyboard.press('Control+a')
  await paste(content, change(text))
}

async function checkEdit(page, origin, pictures, problems) {
  await api(page, 'POST', `${MEMBER}/api/v1/namespaces/default/configmaps`, CONFIG)
  await show(page, origin, { resource: 'configmaps', name: EDITED, tab: 'yaml' })
  await page.getByRole('button', { name: 'Edit' }).click()
  await waitForParameter(page, 'edit', 'true')
  await assertAccessible(page)
  // Invalid YAML and unknown fields are refused before anything is saved.
  await rewriteManifest(page, (text) => `${text}\n  - broken`)
  await page.getByRole('button', { name: 'Preview' }).click()
  await page.getByRole('alert').waitFor()
  await page.getByRole('button', { name: 'Discard' }).click()
  // The palette also opens the editor.
  await page.getByRole('button', { name: 'Edit' }).waitFor()
  await page.keyboard.press('Control+k')
  await page.getByRole('dialog').getByRole('option').filter({ hasText: /^Edit/ }).filter({ hasText: `ConfigMap ${EDITED}` }).click()
  await waitForParameter(page, 'edit', 'true')
  await rewriteManifest(page, (text) => text.replace('data:', 'nosuch: x\ndata:'))
  await page.getByRole('button', { name: 'Preview' }).click()
  await page.getByRole('alert').getByText(/unknown field "nosuch"/).waitFor()
  removeExpected(problems, /status of 400/)
  // The editor completes the prefix of a field, from the cluster's OpenAPI document.
  await page.getByText('Ctrl-Space lists the fields').waitFor()
  await page.locator('.editor .cm-line', { hasText: 'nosuch: x' }).click()
  await page.keyboard.press('Home')
  await page.keyboard.type('imm')
  await page.locator('.editor .cm-tooltip-autocomplete li', { hasText: /^immutable/ }).waitFor()
  await page.keyboard.press('Escape')
  await rewriteManifest(page, (text) => text.replace('immnosuch: x\n', '').replace('colour: red', 'colour: blue'))
  await page.getByRole('button', { name: 'Preview' }).click()
  await page.getByRole('heading', { name: /Changes in/ }).waitFor()
  const change = page.locator('.editor .cm-inlineChangedLine', { hasText: 'colour:' })
  await change.locator('del', { hasText: 'red' }).waitFor()
  await change.locator('.cm-changedText', { hasText: 'blue' }).waitFor()
  await assertAccessible(page)
  await page.screenshot({ path: join(pictures, 'preview.png') })
  const path = `${MEMBER}/api/v1/namespaces/default/configmaps/${EDITED}`
  assert.equal((await api(page, 'GET', path)).data.colour, 'red')
  await page.getByRole('button', { name: 'Save in member1' }).click()
  await page.getByText('Saved.').waitFor()
  assert.equal((await api(page, 'GET', path)).data.colour, 'blue')
  assert.equal(parameter(page, 'edit'), null)
}

async function checkConflict(page, origin, pictures, problems) {
  const path = `${MEMBER}/api/v1/namespaces/default/configmaps/${EDITED}`
  await show(page, origin, { resource: 'configmaps', name: EDITED, tab: 'yaml', edit: 'true' })
  await rewriteManifest(page, (text) => text.replace('colour: blue', 'colour: green').replace('size: small', 'size: large'))
  await api(page, 'PATCH', path, { data: { colour: 'black', shape: 'round' } })
  await page.getByRole('button', { name: 'Preview' }).click()
  await page.getByRole('heading', { name: 'The object has changed' }).waitFor()
  removeExpected(problems, /status of 409/)
  const theirs = page.getByRole('table', { name: 'Their changes' })
  await theirs.getByRole('row', { name: /data\.colour "blue" "black"/ }).waitFor()
  await theirs.getByRole('row', { name: /data\.shape absent "round"/ }).waitFor()
  const mine = page.getByRole('table', { name: 'Your changes' })
  await mine.getByRole('row', { name: /data\.size "small" "large" applied/ }).waitFor()
  await assertAccessible(page)
  await page.screenshot({ path: join(pictures, 'conflict.png') })
  await mine.getByRole('row', { name: /data\.colour/ }).getByRole('checkbox', { name: 'Take mine' }).check()
  await page.getByRole('button', { name: 'Apply my changes' }).click()
  await page.getByText('Your changes have been applied to the current version.').waitFor()
  await page.getByRole('button', { name: 'Preview' }).click()
  await page.getByRole('button', { name: 'Save in member1' }).click()
  await page.getByText('Saved.').waitFor()
  assert.deepEqual((await api(page, 'GET', path)).data, { colour: 'green', shape: 'round', size: 'large' })
}

async function checkSecret(page, origin, pictures) {
  const body = { apiVersion: 'v1', kind: 'Secret', metadata: { name: 'hidden' }, stringData: { password: 'correct-horse' } }
  await api(page, 'POST', `${MEMBER}/api/v1/namespaces/default/secrets`, body)
  const query = encodeURIComponent('kind:secret name:=hidden')
  const end = Date.now() + 60_000
  for (let hits = 0; hits === 0; ) {
    hits = (await api(page, 'GET', `/apis/search.crowsnest.io/v1alpha1/count?q=${query}`)).total
    assert.ok(hits > 0 || Date.now() < end, 'the Secret is not found')
  }
  const requestedUrls = []
  const responseTexts = []
  const recordResponse = async (response) => {
    if (!response.url().includes('/apis/')) return
    requestedUrls.push(response.url())
    responseTexts.push(await response.text().catch(() => ''))
  }
  page.on('response', recordResponse)
  await show(page, origin, { resource: 'secrets', name: 'hidden' })
  await page.getByText('Keys of data').waitFor()
  await page.getByText('password', { exact: true }).waitFor()
  await page.getByRole('link', { name: 'YAML' }).click()
  await page.getByText('values are requested only').waitFor()
  await page.locator('.editor').getByText('password', { exact: true }).waitFor()
  const value = Buffer.from('correct-horse').toString('base64')
  assert.deepEqual(requestedUrls.filter((url) => url.includes('/secrets/hidden')), [])
  assert.ok(!responseTexts.some((text) => text.includes(value) || text.includes('correct-horse')), 'a response contains the value of the Secret')
  const button = page.getByRole('button', { name: 'Edit' })
  assert.equal(await button.getAttribute('aria-disabled'), 'true')
  assert.match(await button.getAttribute('title'), /Show the values/)
  await assertAccessible(page)
  await page.screenshot({ path: join(pictures, 'secret.png') })
  await page.getByRole('button', { name: 'Show values' }).click()
  await page.locator('.editor').getByText(value).waitFor()
  // A link never shows a Secret's values.
  await page.reload()
  await page.getByRole('button', { name: 'Show values' }).waitFor()
  assert.equal(await page.locator('.editor').getByText(value).count(), 0)
  page.off('response', recordResponse)
}

async function checkEvents(page, origin, pod) {
  await show(page, origin, { resource: 'pods', name: pod, tab: 'events' })
  await page.getByRole('table', { name: 'Events' }).getByRole('cell', { name: 'Scheduled', exact: true }).waitFor()
  await assertAccessible(page)
}

async function checkRelated(page, origin, pictures) {
  await show(page, origin, { ...WEB, tab: 'related' })
  const graph = page.getByRole('group', { name: 'Related objects' })
  const set = graph.getByRole('link', { name: /^ReplicaSet · member1 web-.*is owned by Deployment web/ })
  await set.waitFor()
  await graph.getByRole('link', { name: /^Pod · member1 web-/ }).first().waitFor()
  await assertAccessible(page)
  await page.screenshot({ path: join(pictures, 'related.png') })
  await set.focus()
  await page.keyboard.press('Enter')
  await page.getByRole('heading', { name: /^ReplicaSet web-/ }).waitFor()
  assert.equal(parameter(page, 'tab'), 'related')
  await page.getByRole('combobox', { name: 'Steps' }).selectOption('1')
  await waitForParameter(page, 'depth', '1')
  await page.getByRole('button', { name: 'As a table' }).click()
  await waitForParameter(page, 'as', 'list')
  const rows = page.getByRole('table', { name: 'Related objects' })
  await rows.getByRole('row', { name: /^web Deployment member1 .*owns ReplicaSet web-/ }).waitFor()
  await assertAccessible(page)
}

async function checkHistory(page, origin, pictures) {
  await show(page, origin, { resource: 'configmaps', name: EDITED, tab: 'history' })
  const versions = page.getByRole('table', { name: 'Versions' })
  await versions.getByRole('row').nth(3).waitFor()
  const differences = page.getByRole('table', { name: 'Differences' })
  await differences.getByRole('row', { name: /data\.colour black green/ }).waitFor()
  await versions.getByRole('row').last().getByRole('radio', { name: /from/ }).check()
  await differences.getByRole('row', { name: /data\.colour red green/ }).waitFor()
  assert.match(parameter(page, 'from'), /^\d+$/)
  await versions.getByRole('row').last().getByRole('button', { name: 'Manifest' }).click()
  await page.locator('.editor .cm-line', { hasText: 'colour: red' }).waitFor()
  await assertAccessible(page)
  await page.screenshot({ path: join(pictures, 'history.png') })
  // Each version shows its change in one line; an earlier version is restored after a dry run.
  await versions.getByRole('cell', { name: /colour red → blue/ }).waitFor()
  await versions.getByRole('row').last().getByRole('button', { name: 'Restore…' }).click()
  const restore = page.getByRole('dialog', { name: `Restore ${EDITED}` })
  await restore.getByText('The cluster accepts this (dry run).').waitFor()
  await restore.getByRole('table', { name: 'Changes by the restore' }).getByRole('row', { name: /data\.colour green red/ }).waitFor()
  await assertAccessible(page)
  await page.screenshot({ path: join(pictures, 'restore.png') })
  await restore.getByRole('button', { name: 'Restore in member1' }).click()
  await page.getByRole('status').getByText('Restored.').waitFor()
  assert.equal((await api(page, 'GET', `${MEMBER}/api/v1/namespaces/default/configmaps/${EDITED}`)).data.colour, 'red')
  // Compare with another cluster, whose override sets another image.
  await show(page, origin, { ...WEB, tab: 'history' })
  await page.getByRole('combobox', { name: 'Compare with' }).selectOption('member2')
  await waitForParameter(page, 'with', 'member2')
  await page.getByRole('row', { name: /spec\.template\.spec\.containers\[0\]\.image nginx:1\.25 nginx:1\.27/ }).waitFor()
  await assertAccessible(page)
}

async function checkLogs(page, origin, pod, pictures) {
  // The logs of a template are those of its copies in all clusters.
  await show(page, origin, { ...WEB, cluster: CONTROL_PLANE, tab: 'logs', tail: '5' })
  const lines = page.locator('.log .line')
  for (const member of ['member1', 'member2', 'member3']) await lines.filter({ hasText: member }).first().waitFor()
  await page.getByText('6 logs').waitFor()
  // Each cluster has its colour and shape, and each pod has a colour.
  await page.waitForFunction(() => new Set([...document.querySelectorAll('.log .cluster svg')].map((mark) => mark.outerHTML)).size === 3)
  const podColours = await lines.evaluateAll((all) => all.map((line) => [line.querySelector('.pod').textContent, line.querySelector('.pod').style.borderLeftColor]))
  assert.equal(new Set(podColours.map(([pod, colour]) => `${pod} ${colour}`)).size, new Set(podColours.map(([pod]) => pod)).size)
  await page.getByText('following', { exact: true }).waitFor()
  // New lines appear while following.
  const countLines = async () => Number(/(\d+) lines/.exec(await page.locator('.log-status').textContent())[1])
  const before = await countLines()
  await page.waitForFunction((before) => Number(/(\d+) lines/.exec(document.querySelector('.log-status').textContent)?.[1]) > before, before)
  await assertAccessible(page)
  await page.screenshot({ path: join(pictures, 'logs-merged.png') })
  // The logs of one pod. Each line has its own URL.
  await show(page, origin, { resource: 'pods', name: pod, tab: 'logs', timestamps: 'true' })
  await lines.first().waitFor()
  await lines.first().locator('time').waitFor()
  await page.getByRole('grid', { name: 'Log' }).focus()
  await page.keyboard.press('Home')
  await page.getByRole('region', { name: 'Selected line' }).waitFor()
  const selectedText = await page.locator('.whole pre').textContent()
  assert.match(parameter(page, 'line'), new RegExp(`^20\\d\\d-.* member1 default ${pod} `))
  await assertAccessible(page)
  await page.reload()
  await page.locator('.line[aria-selected=true]').waitFor()
  assert.equal(await page.locator('.whole pre').textContent(), selectedText)
  // Tab focuses the skip link, which is visible only while it has the focus. It must not shift the elements that are clicked next.
  await page.keyboard.press('Tab')
  // Lines are counted over time; long ones take several rows if they are wrapped.
  await page.getByRole('img', { name: /^[\d,]+ lines over time, \d+ errors, \d+ warnings$/ }).waitFor()
  await page.getByRole('checkbox', { name: 'Wrap lines' }).check()
  await waitForParameter(page, 'wrap', 'true')
  await page.locator('.log.wrap .line:not(.probe)').first().waitFor()
  await page.setViewportSize({ width: 640, height: 850 })
  await page.waitForFunction(() => [...document.querySelectorAll('.log.wrap .line:not(.probe)')].some((line) => line.getBoundingClientRect().height > 20))
  await assertAccessible(page)
  await page.screenshot({ path: join(pictures, 'logs-wrapped.png') })
  await page.setViewportSize({ width: 1400, height: 850 })
  await page.getByRole('checkbox', { name: 'Wrap lines' }).uncheck()
  await waitForParameter(page, 'wrap', null)
  // The server applies the filters.
  const word = /\w{3,}/.exec(selectedText)[0]
  await page.getByRole('textbox', { name: 'Exclude' }).fill('.*')
  await page.keyboard.press('Enter')
  await waitForParameter(page, 'exclude', '.*')
  await page.getByText('No lines yet.').waitFor()
  await page.getByRole('textbox', { name: 'Exclude' }).fill('')
  await page.getByRole('textbox', { name: 'Include' }).fill(word)
  await page.getByRole('button', { name: 'Filter' }).click()
  await waitForParameter(page, 'include', word)
  await lines.first().waitFor()
  await page.getByRole('combobox', { name: 'Since' }).selectOption('1h')
  await waitForParameter(page, 'since', '1h')
  await page.getByRole('button', { name: 'Follow', exact: true }).click()
  await waitForParameter(page, 'follow', 'false')
  await page.getByText('paused', { exact: true }).waitFor()
  const [file] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: 'Download' }).click()])
  assert.equal(file.suggestedFilename(), `${pod}.log`)
  assert.match(await readFile(await file.path(), 'utf8'), new RegExp(`^member1 default/${pod} \\S+ \\| 20\\d\\d-`))
  await page.getByRole('checkbox', { name: 'Previous run' }).check()
  await waitForParameter(page, 'previous', 'true')
  assert.equal(await page.getByRole('button', { name: 'Follow', exact: true }).getAttribute('aria-disabled'), 'true')
  // The container has no previous run. The member's error is shown.
  await page.getByText(/previous terminated container .* not found/).first().waitFor()
}

/** A log with more lines than the page keeps: the oldest lines are dropped, and the scroll position stays. */
async function checkManyLines(page, origin, pod) {
  const LINES = 45_000
  await page.route(/v1alpha1\/logs\?/, (route) => {
    const source = { cluster: 'member1', namespace: 'default', pod, container: 'web' }
    const line = (nth) => ({ ...source, time: new Date(1_767_225_600_000 + nth).toISOString().replace('Z', '000000Z'), text: `${nth} ${'x'.repeat(100)}` })
    const body = [['joined', source], ...Array.from({ length: LINES }, (_, nth) => ['line', line(nth)]), ['line', { ...line(LINES), text: 'y'.repeat(64 << 10), cut: true }], ['done', { lines: LINES, logs: 1, refused: 0 }]]
    const text = body.map(([event, data]) => `event: ${event}\ndata: ${JSON.stringify(data)}\n\n`).join('')
    return route.fulfill({ body: text, contentType: 'text/event-stream' })
  })
  await show(page, origin, { resource: 'pods', name: pod, tab: 'logs', follow: 'false' })
  await page.getByText('45,001 lines').waitFor()
  await page.getByText(/the oldest 25,\d\d\d were dropped from this page/).waitFor()
  const rendered = await page.locator('.log .line').count()
  assert.ok(rendered < 120, `${rendered} lines are rendered`)
  await page.locator('.log .line', { hasText: 'yyyy' }).click()
  await page.getByText('The line is truncated').waitFor()
  const cdp = await page.context().newCDPSession(page)
  await cdp.send('HeapProfiler.collectGarbage')
  const { usedSize } = await cdp.send('Runtime.getHeapUsage')
  assert.ok(usedSize < MAX_HEAP_BYTES, `${usedSize} bytes of heap`)
  await page.unroute(/v1alpha1\/logs\?/)
}

async function checkTerminal(page, origin, pod, pictures) {
  await page.addInitScript(() => {
    const Real = window.WebSocket
    window.sockets = []
    window.WebSocket = class extends Real {
      constructor(...args) {
        super(...args)
        window.sockets.push(this)
      }
      send(message) {
        window.sent = (window.sent ?? 0) + 1
        super.send(message)
      }
    }
    // The keepalive interval of 25 s is shortened.
    const setRealInterval = window.setInterval
    window.setInterval = (callback, delay, ...args) => setRealInterval(callback, delay === 25_000 ? 200 : delay, ...args)
  })
  await show(page, origin, { resource: 'pods', name: pod, tab: 'terminal' })
  await page.getByText(/^connected: /).waitFor()
  const screen = page.locator('.xterm-rows')
  await screen.getByText(new RegExp(`${pod.slice(0, 12)}`)).first().waitFor()
  await page.keyboard.type('echo a"b"z $HOSTNAME\n')
  await screen.getByText(`abz ${pod}`).first().waitFor()
  // Without input, keepalive messages are sent and do not affect the shell.
  const [sent, sockets] = await page.evaluate(() => [window.sent, window.sockets.length])
  await page.waitForFunction((before) => window.sent >= before + 3, sent)
  await page.keyboard.type('echo st"i"ll\n')
  await screen.getByText('still').first().waitFor()
  assert.equal(await page.evaluate(() => window.sockets.length), sockets)
  // Styles are applied although the page's content security policy forbids style elements.
  assert.equal(await screen.locator('span').first().evaluate((span) => getComputedStyle(span).display), 'inline-block')
  assert.equal(await page.locator('style').count(), 0)
  await assertAccessible(page)
  await page.screenshot({ path: join(pictures, 'terminal.png') })
  // The page's shortcut keys are sent to the shell; one key leaves the terminal.
  await page.keyboard.press('Control+k')
  await page.keyboard.press('?')
  assert.equal(await page.getByRole('dialog').count(), 0)
  await page.keyboard.press('F6')
  await page.getByRole('combobox', { name: 'Container' }).and(page.locator(':focus')).waitFor()
  // A lost connection is opened again, and the terminal reports this.
  await page.evaluate(() => window.sockets.at(-1).close())
  await screen.getByText(/The connection was lost/).first().waitFor()
  await screen.getByText(/Reconnected at/).first().waitFor()
  await page.getByText(/^connected: /).waitFor()
  await page.getByRole('combobox', { name: 'Shell' }).selectOption('sh')
  await waitForParameter(page, 'shell', 'sh')
  await page.getByText('connected: sh').waitFor()
  await screen.getByText('#').first().waitFor()
  await page.keyboard.type('exit 3\n')
  await page.getByRole('status').getByText('The shell has ended: exit code 3.').waitFor()
  await page.getByRole('button', { name: 'New shell' }).click()
  await page.getByText('connected: sh').waitFor()
}

async function checkCommands(page, origin, pod) {
  const expectedCommands = [
    ['overview', {}, `kubectl --context member1 -n default describe pods/${pod}`],
    ['yaml', {}, `crowsnest get pods/${pod} -n default --cluster member1 -o yaml`],
    ['events', {}, `crowsnest search 'kind:event about:pod/default/${pod} cluster:=member1'`],
    ['related', { depth: '1' }, `crowsnest search 'related:pod/default/${pod} cluster:=member1 depth:1'`],
    ['history', {}, `kubectl get --raw '/apis/search.crowsnest.io/v1alpha1/history?cluster=member1&apiVersion=v1&resource=pods&namespace=default&name=${pod}'`],
    ['logs', { since: '1h', previous: 'true' }, `kubectl --context member1 -n default logs pods/${pod} --all-containers --since 1h -p`],
    ['terminal', { shell: 'sh' }, `crowsnest exec -it -n default --cluster member1 ${pod} -- sh`],
  ]
  for (const [tab, view, command] of expectedCommands) {
    await show(page, origin, { resource: 'pods', name: pod, tab, ...view })
    await page.getByText(/ old$/).waitFor()
    await page.getByRole('button', { name: 'Copy as command' }).click()
    const shown = await page.getByRole('group', { name: 'Copy as command' }).locator('code').allTextContents()
    assert.ok(shown.includes(command), `${tab}: ${shown.join('\n')} has no ${command}`)
    assert.ok(shown.some((text) => text.startsWith('kubectl ')), `${tab}: ${shown}`)
  }
  await page.context().grantPermissions(['clipboard-read', 'clipboard-write'])
  await page.getByRole('button', { name: 'Copy as kubectl' }).click()
  await page.getByRole('button', { name: 'Copied' }).or(page.getByText('Copied')).first().waitFor()
  assert.match(await page.evaluate(() => navigator.clipboard.readText()), /^kubectl --context member1 -n default exec -it /)
}

/** A Deployment of member1 that is not propagated, so that its changes are not reverted. */
const MEMBER_DEPLOYMENT = {
  apiVersion: 'apps/v1',
  kind: 'Deployment',
  metadata: { name: 'own' },
  spec: {
    replicas: 1,
    selector: { matchLabels: { app: 'own' } },
    template: { metadata: { labels: { app: 'own' } }, spec: { containers: [{ name: 'own', image: 'nginx:1.27' }] } },
  },
}

async function checkActions(page, origin, pictures, problems) {
  const path = `${MEMBER}/apis/apps/v1/namespaces/default/deployments`
  const read = () => api(page, 'GET', `${path}/own`)
  await api(page, 'POST', path, MEMBER_DEPLOYMENT)
  await show(page, origin, { ...WEB, name: 'own' })
  await page.getByRole('button', { name: 'Scale' }).click()
  const scale = page.getByRole('dialog', { name: 'Scale Deployment own' })
  await scale.getByText('The cluster accepts this (dry run).').waitFor()
  await scale.getByRole('spinbutton', { name: 'Replicas' }).fill('3')
  await scale.getByRole('status').getByText('Checking with a dry run').waitFor()
  await scale.getByText('The cluster accepts this (dry run).').waitFor()
  assert.equal((await read()).spec.replicas, 1)
  await assertAccessible(page)
  await page.screenshot({ path: join(pictures, 'scale.png') })
  await scale.getByRole('button', { name: 'Scale' }).click()
  await page.getByText('Scaled to 3.').waitFor()
  assert.equal((await read()).spec.replicas, 3)
  await page.getByRole('button', { name: 'Undo' }).click()
  await page.getByText('Scaled to 1.').waitFor()
  assert.equal((await read()).spec.replicas, 1)

  await page.getByRole('button', { name: 'Restart' }).click()
  await page.getByRole('dialog').getByText('The cluster accepts this (dry run).').waitFor()
  await page.getByRole('dialog').getByRole('button', { name: 'Restart' }).click()
  await page.getByText('Restarted.').waitFor()
  assert.ok((await read()).spec.template.metadata.annotations['kubectl.kubernetes.io/restartedAt'], 'the Deployment was not restarted')

  await page.getByRole('button', { name: 'Delete' }).click()
  const dialog = page.getByRole('dialog', { name: 'Delete Deployment own?' })
  await dialog.getByText('member1').waitFor()
  await page.keyboard.press('Escape')
  await dialog.waitFor({ state: 'detached' })
  await read()
  await page.getByRole('button', { name: 'Delete' }).click()
  await dialog.getByText('The cluster accepts this (dry run).').waitFor()
  await dialog.getByRole('button', { name: 'Delete' }).click()
  await page.getByText('Show its cached history.').click()
  await page.getByText('until it was deleted').first().waitFor()
  // The page of a copy links to its template.
  await show(page, origin, WEB)
  removeExpected(problems, /status of 404/)
  await page.getByRole('link', { name: /Go to the template/ }).click()
  await waitForParameter(page, 'cluster', CONTROL_PLANE)
}

/** Actions that the cluster denies are disabled with a reason. */
async function checkDisabledActions(page, origin, pod) {
  await page.route(/selfsubjectaccessreviews$/, async (route) => {
    const { verb, subresource } = JSON.parse(route.request().postData()).spec.resourceAttributes
    const allowed = verb === 'get' && subresource === undefined
    return route.fulfill({ json: { apiVersion: 'authorization.k8s.io/v1', kind: 'SelfSubjectAccessReview', status: { allowed } } })
  })
  await show(page, origin, { resource: 'pods', name: pod, tab: 'yaml' })
  for (const [name, reason] of [['Edit', 'You may not update pods in default of member1.'], ['Delete', 'You may not delete pods in default of member1.']]) {
    const button = page.getByRole('button', { name, disabled: true })
    await button.waitFor()
    assert.equal(await button.getAttribute('title'), reason)
  }
  for (const [tab, action] of [['Events', 'list events'], ['Logs', 'get pods/log'], ['Terminal', 'create pods/exec']]) {
    const link = page.getByRole('link', { name: `${tab}: You may not ${action} in default of member1.` })
    assert.equal(await link.getAttribute('aria-disabled'), 'true')
  }
  await assertAccessible(page)
  // The palette does not offer them.
  await page.keyboard.press('Control+k')
  const commands = page.getByRole('dialog').getByRole('option').filter({ hasText: `Pod ${pod}` })
  await commands.filter({ hasText: /^Related/ }).waitFor()
  for (const name of [/^Edit/, /^Logs/, /^Terminal/]) assert.equal(await commands.filter({ hasText: name }).count(), 0)
  await page.keyboard.press('Escape')
  await page.getByRole('dialog').waitFor({ state: 'detached' })
  await page.unroute(/selfsubjectaccessreviews$/)
}

async function checkLanguages(page, origin, pod) {
  await show(page, origin, { resource: 'pods', name: pod })
  await setPreference(page, 'Language', 'zh-CN')
  await page.getByRole('link', { name: '关联' }).waitFor()
  await page.getByRole('table', { name: '容器' }).waitFor()
  await setPreference(page, '语言', 'en')
  await page.getByRole('link', { name: 'Related' }).waitFor()
}

if (isMain(import.meta)) {
  const [address, pictures] = process.argv.slice(2)
  await runSignedIn(address, (page, origin, problems) => checkObject(page, origin, pictures, problems), { pictures })
}
