import { expect, it } from 'vitest'
import { failedFileOf, moduleLoader, urlOfAttempt } from './moduleLoader'

const SAVED = 'https://fleet/assets/Saved-1.js'
const STYLES = 'https://fleet/assets/Plan-1.css'

it.each([
  ['Chromium', new TypeError(`Failed to fetch dynamically imported module: ${SAVED}`), SAVED],
  ['Firefox', new TypeError(`error loading dynamically imported module: ${SAVED}`), SAVED],
  ['Safari', new TypeError('Importing a module script failed.'), undefined],
  ['Vite', new Error(`Unable to preload CSS for ${STYLES}`), STYLES],
  ['an error of the module', new Error('x is not a function'), undefined],
  ['no error', 'failed', undefined],
])('the file that failed, as named by %s', (_, error, file) => expect(failedFileOf(error)).toBe(file))

it('each attempt has its own URL', () => {
  expect(urlOfAttempt(SAVED, 1)).toBe(`${SAVED}?retry=1`)
  expect(urlOfAttempt(`${SAVED}?retry=1`, 2)).toBe(`${SAVED}?retry=2`)
})

/** Loads a module until it succeeds, at most five times, and returns the requested URLs. The first requests fail with these errors. */
async function requestsOf(errors: (Error | undefined)[]): Promise<string[]> {
  const requests: string[] = []
  const request = async (url: string): Promise<{ url: string }> => {
    requests.push(url)
    const error = errors.shift()
    if (error) throw error
    return { url }
  }
  const loadModule = moduleLoader(() => request('load'), { importModule: request, addStyleSheet: async (url) => void (await request(url)) })
  for (let attempt = 0; attempt < 5; attempt += 1) {
    const module = await loadModule().catch(() => undefined)
    if (module) return [...requests, `loaded from ${module.url}`]
  }
  return requests
}

const failedImport = (url: string) => new TypeError(`Failed to fetch dynamically imported module: ${url}`)
const failedStyles = (url: string) => new Error(`Unable to preload CSS for ${url}`)

it.each([
  ['no failure', [], ['load', 'loaded from load']],
  ['one failure', [failedImport(SAVED)], ['load', `${SAVED}?retry=1`, `loaded from ${SAVED}?retry=1`]],
  ['two failures', [failedImport(SAVED), failedImport(`${SAVED}?retry=1`)], ['load', `${SAVED}?retry=1`, `${SAVED}?retry=2`, `loaded from ${SAVED}?retry=2`]],
  ['a failure that names no file', [new TypeError('Importing a module script failed.')], ['load', 'load', 'loaded from load']],
  ['a style sheet', [failedStyles(STYLES)], ['load', `${STYLES}?retry=1`, 'load', 'loaded from load']],
  [
    'a style sheet, and then the module',
    [failedStyles(STYLES), failedStyles(`${STYLES}?retry=1`), undefined, failedImport(SAVED)],
    ['load', `${STYLES}?retry=1`, `${STYLES}?retry=2`, 'load', `${SAVED}?retry=3`, `loaded from ${SAVED}?retry=3`],
  ],
] as [string, (Error | undefined)[], string[]][])('requests after %s', async (_, errors, requests) => expect(await requestsOf([...errors])).toEqual(requests))
