// Signs in at an identity provider, and signs out. Run by tests/tests/oidc.rs: node e2e/oidc.mjs <address> <issuer>
import assert from 'node:assert/strict'
import { runInBrowser, signOut } from './browser.mjs'

const [address, issuer] = process.argv.slice(2)
const provider = new URL(issuer).origin

async function signInAndOut(page, origin) {
  const searchUrl = `${origin}/search?q=kind%3Apod`
  await page.goto(searchUrl)
  await page.getByRole('link', { name: 'Sign in with 127.0.0.1' }).click()
  await page.waitForURL(searchUrl)
  await page.locator('.who', { hasText: 'oidc:alice' }).waitFor()
  // The session is renewed for each of these requests without user interaction.
  for (const view of ['/fleet', '/steer', '/saved', '/search?q=kind%3Apod']) {
    await page.goto(origin + view)
    await page.locator('.who', { hasText: 'oidc:alice' }).waitFor()
    await page.locator('main h1').first().waitFor({ state: 'attached' })
  }
  assert.equal(await page.locator('.session-ended').count(), 0)
  // Scripts can read no cookie and no token. The text of a JWT begins with eyJ.
  const readable = await page.evaluate(() => JSON.stringify([document.cookie, { ...localStorage }, { ...sessionStorage }]))
  assert.ok(readable.startsWith('["",') && !readable.includes('eyJ'), readable)

  await signOut(page)
  const providerSignOut = page.getByRole('link', { name: 'Sign out of 127.0.0.1, too' })
  assert.equal(await providerSignOut.getAttribute('href'), `${issuer}/logout?client_id=crowsnest`)
  await providerSignOut.click()
  await page.getByText('You are signed out.').waitFor()
  await page.goto(searchUrl)
  await page.getByRole('link', { name: 'Sign in with 127.0.0.1' }).waitFor()

  // A callback of a sign-in that this browser did not start is rejected.
  await page.goto(`${origin}/ui/oidc/callback?code=a&state=b`)
  await page.getByRole('alert').getByText('has not started a sign-in here').waitFor()
  await page.getByRole('link', { name: 'Sign in again' }).click()
  await page.waitForURL(`${origin}/`)
  await page.locator('.who', { hasText: 'oidc:alice' }).waitFor()
}

await runInBrowser(address, signInAndOut, {
  otherOrigins: [provider],
  // The browser logs refused requests and the rejected callback as errors; the provider's pages are not checked.
  isExpectedProblem: (problem) => /status of 40[03]/.test(problem) || problem.includes(provider),
})
