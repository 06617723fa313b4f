// Signs in at an identity provider, and out again: node e2e/oidc.mjs <address> <issuer>
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
  const readable = await page.evaluate(() => JSON.stringify([document.cookie, { ...localStorage }, { ...sessionStorage }]))
  assert.ok(readable.startsWith('["",') && !readable.includes('eyJ'), readable)

  await signOut(page)
  const providerSignOut = page.getByRole('link', { name: 'Sign out of 127.0.0.1, too' })
  assert.equal(await providerSignOut.getAttribute('href'), `${issuer}/logout?client_id=crowsnest`)
  await providerSignOut.click()
  await page.getByText('You are signed out.').waitFor()
  await page.goto(searchUrl)
  await page.getByRole('link', { name: 'Sign in with 127.0.0.1' }).waitFor()

  // A callback for a sign-in that was not started here.
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
