import { expect, it } from 'vitest'
import { failedFileOf, moduleLoader, recordMissingStyleSheets, urlOfAttempt, type PageFiles } from './moduleLoader'

const SAVED = 'https://fleet/assets/Saved-1.js'
const STYLES = 'https://fleet/assets/Plan-1.css'
const EDITOR_STYLES = 'https://fleet/assets/Editor-1.css'

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

/** A page whose requests for these URLs fail. */
function pageWithout(failing: string[]) {
  const requests: string[] = []
  const request = async (url: string): Promise<string> => {
    requests.push(url)
    if (!failing.includes(url)) return url
    throw new Error(`${new URL(url).pathname.endsWith('.css') ? 'Unable to preload CSS for' : 'Failed to fetch dynamically imported module:'} ${url}`)
  }
  const files: PageFiles = { importModule: request, addStyleSheet: async (url) => void (await request(url)), missingStyleSheets: new Set() }
  const events = new EventTarget()
  recordMissingStyleSheets(events, files)
  const preloaded = new Set<string>()
  const preload = (file: string) => {
    preloaded.add(file)
    return request(file)
  }
  /** Imports a module as Vite does: it requests each style sheet once, and reports each failure by an event, whose default is an exception. */
  const importModule = async (styleSheets: string[]): Promise<string> => {
    const results = await Promise.allSettled(styleSheets.filter((file) => !preloaded.has(file)).map(preload))
    for (const result of results) {
      if (result.status === 'fulfilled') continue
      const event = Object.assign(new Event('vite:preloadError', { cancelable: true }), { payload: result.reason as Error })
      if (events.dispatchEvent(event)) throw result.reason
    }
    return request(SAVED)
  }
  return { requests, files, importModule }
}

/** Calls a loader until it succeeds. */
async function loadRepeatedly(loadModule: () => Promise<unknown>): Promise<void> {
  for (let attempt = 0; attempt < 5; attempt += 1) {
    if (await loadModule().then(() => true, () => false)) return
  }
  throw new Error('the module was not loaded in five attempts')
}

it.each([
  ['no failure', [], [SAVED]],
  ['one failure', [SAVED], [SAVED, `${SAVED}?retry=1`]],
  ['two failures', [SAVED, `${SAVED}?retry=1`], [SAVED, `${SAVED}?retry=1`, `${SAVED}?retry=2`]],
] as [string, string[], string[]][])('requests of a module after %s', async (_, failing, expected) => {
  const { requests, files, importModule } = pageWithout(failing)
  const loadModule = moduleLoader(() => importModule([]), files)
  await loadRepeatedly(loadModule)
  expect(requests).toEqual(expected)
})

it.each([
  ['no failure', [], [SAVED]],
  ['one failure', [STYLES], [SAVED, `${STYLES}?retry=1`, SAVED]],
  ['failures of all style sheets', [STYLES, EDITOR_STYLES], [SAVED, `${STYLES}?retry=1`, `${EDITOR_STYLES}?retry=1`, SAVED]],
  [
    'another failure of one of them',
    [STYLES, EDITOR_STYLES, `${STYLES}?retry=1`],
    [SAVED, `${STYLES}?retry=1`, `${EDITOR_STYLES}?retry=1`, `${STYLES}?retry=2`, SAVED],
  ],
  ['failures of a style sheet and the module', [STYLES, SAVED], [SAVED, `${STYLES}?retry=1`, `${SAVED}?retry=1`]],
  [
    'another failure of the style sheet',
    [STYLES, SAVED, `${STYLES}?retry=1`],
    [SAVED, `${STYLES}?retry=1`, `${STYLES}?retry=2`, `${SAVED}?retry=2`],
  ],
] as [string, string[], string[]][])('requests of a module with two style sheets after %s', async (_, failing, expected) => {
  const { requests, files, importModule } = pageWithout(failing)
  const loadModule = moduleLoader(() => importModule([STYLES, EDITOR_STYLES]), files)
  await loadRepeatedly(loadModule)
  expect(requests).toEqual([STYLES, EDITOR_STYLES, ...expected])
  expect(files.missingStyleSheets.size).toBe(0)
})

it('a style sheet that failed for one part is added for another', async () => {
  const { requests, files, importModule } = pageWithout([STYLES])
  const [loadPlan, loadPolicy] = [moduleLoader(() => importModule([STYLES]), files), moduleLoader(() => importModule([STYLES]), files)]
  await expect(loadPlan()).rejects.toThrow(STYLES)
  expect(await loadPolicy()).toBe(SAVED)
  expect(await loadPlan()).toBe(SAVED)
  expect(requests).toEqual([STYLES, SAVED, `${STYLES}?retry=0`, SAVED, SAVED])
})

it('after a failure that names no file, the module is imported again', async () => {
  const errors = [new TypeError('Importing a module script failed.')]
  const loadModule = moduleLoader(async () => {
    const error = errors.pop()
    if (error) throw error
    return 'loaded'
  }, pageWithout([]).files)
  await expect(loadModule()).rejects.toThrow('Importing a module script failed.')
  expect(await loadModule()).toBe('loaded')
})
