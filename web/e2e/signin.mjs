// Signing in with a kubeconfig's client certificate, a session that expires while a page is open, and the content security policy.
// Run by tests/tests/signin.rs: node e2e/signin.mjs <address> <kubeconfig> <folder for screenshots> <token>
import assert from 'node:assert/strict'
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { assertAccessible, runInBrowser, signInByLink, signOut } from './browser.mjs'

/** Content security policy of proxied responses. */
const PROXIED_POLICY = "default-src 'none'; sandbox; base-uri 'none'; frame-ancestors 'none'; form-action 'none'"
const POLICY = "default-src 'self'; object-src 'none'; base-uri 'none'; frame-ancestors 'none'; form-action 'self'"
/** All views that need no object. */
const VIEWS = ['/', '/search?q=kind:namespace', '/search?q=kind:namespace&live=true', '/saved', '/fleet', '/fleet/nodes', '/fleet/events', '/fleet/join', '/steer', '/steer/bindings', '/steer/failover', '/steer/quotas', '/steer/rebalance', '/plan?new=PropagationPolicy', '/object?cluster=@control-plane&apiVersion=v1&resource=namespaces&name=default&tab=yaml', '/nosuchpage']

const [address, kubeconfig, pictures, token] = process.argv.slice(2)

const kubeconfigInput = (page) => page.getByLabel('Or a kubeconfig')
/** A file with this text, for `setInputFiles`. */
const toFile = (text) => ({ name: 'config', mimeType: 'application/yaml', buffer: Buffer.from(text) })
const waitForSignIn = (page) => page.locator('.who', { hasText: /\S/ }).waitFor()

async function checkRefusals(page, origin) {
  await page.goto(origin)
  await page.getByLabel('Token of the control plane').fill('nobodys')
  await page.getByRole('button', { name: 'Sign in' }).click()
  await page.getByRole('alert').getByText('does not accept this token (401)').waitFor()
  await assertAccessible(page)
  const withUser = (user) => `current-context: a\ncontexts: [{name: a, context: {cluster: a, user: a}}]\nusers: [{name: a, user: ${user}}]\n`
  for (const [text, reason] of [
    ['{', 'invalid kubeconfig'],
    ['users: []', 'this kubeconfig has no current-context'],
    [withUser('{exec: {apiVersion: v1, command: aws}}'), 'uses the exec command "aws", which the server does not run'],
    [withUser('{client-certificate: /etc/hostname, client-key: /etc/hostname}'), 'refers to files, which the server does not read'],
    [withUser('{client-certificate-data: YQ==, client-key-data: YQ==}'), 'cannot use the client certificate or key'],
  ]) {
    await kubeconfigInput(page).setInputFiles(toFile(text))
    await page.getByRole('alert').getByText(reason).waitFor()
  }
  await page.screenshot({ path: join(pictures, 'signin.png') })
}

/** A URL with a token signs in only after confirmation. */
async function checkSignInLink(page, origin) {
  const signInUrl = `${origin}/#token=${token}`
  const cookies = () => page.context().cookies()
  // A change of the fragment alone does not load a page.
  await page.goto('about:blank')
  await page.goto(signInUrl)
  await page.getByRole('button', { name: 'Sign in as system:admin', exact: true }).waitFor()
  assert.ok(!page.url().includes('token='), 'the URL still contains the token')
  assert.deepEqual(await cookies(), [])
  await assertAccessible(page)
  await page.screenshot({ path: join(pictures, 'signin-link.png') })
  await page.getByRole('button', { name: 'Don’t sign in as system:admin' }).click()
  await page.getByLabel('Token of the control plane').waitFor()
  assert.deepEqual(await cookies(), [])
  await page.goto('about:blank')
  await signInByLink(page, signInUrl)
  await waitForSignIn(page)
  const [{ name, value, httpOnly, sameSite }, ...others] = await cookies()
  assert.deepEqual([name, httpOnly, sameSite, others.length], ['crowsnest-session', true, 'Strict', 0])
  assert.ok(!value.includes(token), 'the cookie contains the token')
  await signOut(page)
  await page.getByLabel('Token of the control plane').waitFor()
  assert.deepEqual(await cookies(), [])
}

/** The user signs in with a client certificate. Scripts can read neither the certificate nor the session cookie. */
async function checkClientCertificate(page, origin) {
  const text = await readFile(kubeconfig, 'utf8')
  assert.match(text, /client-certificate-data/)
  assert.doesNotMatch(text, /token:/)
  await kubeconfigInput(page).setInputFiles(kubeconfig)
  await waitForSignIn(page)
  await page.goto(`${origin}/search?q=kind%3Anamespace`)
  await page.getByText(/objects? in [\d.]+ ms/).waitFor()
  const readable = await page.evaluate(() => JSON.stringify([document.cookie, { ...localStorage }, { ...sessionStorage }]))
  assert.ok(readable.startsWith('["",') && !readable.includes('KEY'), readable)
  const cookies = (await page.context().cookies()).map(({ name, httpOnly, sameSite }) => ({ name, httpOnly, sameSite }))
  assert.deepEqual(cookies, [{ name: 'crowsnest-identity', httpOnly: true, sameSite: 'Strict' }])
}

/** Unsaved input survives the end of a session: the user signs in again in another tab and continues. */
async function checkEndedSession(page, origin) {
  await page.goto(`${origin}/plan?new=PropagationPolicy`)
  const editor = page.getByRole('textbox', { name: 'Draft' })
  await editor.getByText('PropagationPolicy', { exact: true }).waitFor()
  const otherTab = await page.context().newPage()
  await otherTab.goto(origin)
  await signOut(otherTab)
  await kubeconfigInput(otherTab).waitFor()
  await editor.click()
  await page.keyboard.press('Control+End')
  await page.keyboard.type('# kept')
  const banner = page.locator('.session-ended')
  await banner.getByText('Your session has ended (401)').waitFor()
  await assertAccessible(page)
  await page.screenshot({ path: join(pictures, 'signin-over.png') })
  await kubeconfigInput(otherTab).setInputFiles(kubeconfig)
  await waitForSignIn(otherTab)
  await otherTab.close()
  await banner.getByRole('button', { name: 'then continue here' }).click()
  await banner.waitFor({ state: 'detached' })
  await editor.getByText('# kept').waitFor()
}

/** Every response has the content security policy, and the browser enforces it. */
async function checkContentSecurityPolicy(page, origin) {
  const responses = []
  const recordResponse = (response) => responses.push(response)
  page.on('response', recordResponse)
  for (const view of VIEWS) {
    await page.goto(origin + view)
    await page.locator('main').waitFor()
    await page.locator('main').locator('h1, p').first().waitFor({ state: 'attached' })
    await assertAccessible(page)
    const foreignUrls = await page.evaluate(() => performance.getEntries().map(({ name }) => name).filter((name) => /^(https?|wss?):/.test(name) && new URL(name).host !== location.host))
    assert.deepEqual(foreignUrls, [], view)
    assert.equal(await page.locator('style, [style*="url("], script:not([src])').count(), 0, view)
  }
  page.off('response', recordResponse)
  assert.ok(responses.length > VIEWS.length, `only ${responses.length} responses were recorded`)
  for (const response of responses) {
    const headers = response.headers()
    const isProxied = /^\/(api|apis|openapi)(\/|$)/.test(new URL(response.url()).pathname)
    assert.equal(headers['content-security-policy'], isProxied ? PROXIED_POLICY : POLICY, response.url())
    assert.equal(headers['x-content-type-options'], 'nosniff', response.url())
    assert.equal(headers['referrer-policy'], 'no-referrer', response.url())
  }
  // The browser blocks inline scripts and styles, and scripts, images, frames and requests of other origins.
  await page.goto(origin)
  const directives = ['connect-src', 'frame-src', 'img-src', 'script-src-attr', 'script-src-elem', 'style-src-elem']
  await page.evaluate(async (foreignOrigin) => {
    window.violatedDirectives = new Set()
    document.addEventListener('securitypolicyviolation', ({ effectiveDirective }) => window.violatedDirectives.add(effectiveDirective))
    const add = (name, properties, into = document.body) => into.append(Object.assign(document.createElement(name), properties))
    add('script', { textContent: 'window.ran = true' })
    add('style', { textContent: 'body { display: none }' })
    add('img', { src: `${foreignOrigin}/a.png` })
    add('iframe', { src: `${foreignOrigin}/` })
    add('script', { src: `${foreignOrigin}/a.js` })
    await fetch(`${foreignOrigin}/a`).catch(() => undefined)
    document.body.setAttribute('onclick', 'window.ran = true')
    document.body.click()
  }, 'http://127.0.0.1:9')
  await page.waitForFunction((expected) => expected.every((directive) => window.violatedDirectives.has(directive)), directives)
  const effects = await page.evaluate(() => ({ ran: window.ran === true, display: getComputedStyle(document.body).display }))
  assert.deepEqual(effects, { ran: false, display: 'block' })
  // The server refuses requests without the header that its own pages send.
  const crossSiteResponse = await page.request.get(`${origin}/apis`)
  assert.equal(crossSiteResponse.status(), 403)
  assert.equal(crossSiteResponse.headers()['access-control-allow-origin'], undefined)
}

/** True for errors that the browser logs for requests that these checks expect to be refused. */
const isExpectedProblem = (problem) => /status of 4(00|03|04|22)|Content Security Policy|127\.0\.0\.1:9/.test(problem)

async function checkSignIn(page, origin) {
  await checkRefusals(page, origin)
  await checkSignInLink(page, origin)
  await checkClientCertificate(page, origin)
  await checkEndedSession(page, origin)
  await checkContentSecurityPolicy(page, origin)
  await signOut(page)
  await page.getByLabel('Token of the control plane').waitFor()
  assert.deepEqual(await page.context().cookies(), [])
}

await runInBrowser(address, checkSignIn, { pictures, isExpectedProblem })
