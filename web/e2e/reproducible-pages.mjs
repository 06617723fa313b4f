// Makes pages look the same in each run and on each machine: with a fixed clock, time zone, fonts and random values, and without animations.
import { readFile } from 'node:fs/promises'
import { createRequire } from 'node:module'

/** Rendering that does not depend on the machine's font settings, screen or colour profile. */
export const FLAGS = ['--font-render-hinting=none', '--disable-lcd-text', '--disable-font-subpixel-positioning', '--force-color-profile=srgb']
/** Playwright's options of the browser context. */
export const CONTEXT = { deviceScaleFactor: 1, locale: 'en-US', timezoneId: 'UTC' }

/**
 * Offset of the page's clock from the server's. Objects that are created during a test then have an age of 30 days, because formatAge rounds
 * it to days.
 */
const CLOCK_OFFSET_MS = (30 * 24 + 12) * 60 * 60 * 1000

/** Font files of the locked npm packages, by the path at which the page loads them. */
const FONTS = [
  { family: 'Test Sans', weight: '400', file: '@fontsource/dejavu-sans/files/dejavu-sans-latin-400-normal.woff2' },
  { family: 'Test Sans', weight: '700', file: '@fontsource/dejavu-sans/files/dejavu-sans-latin-700-normal.woff2' },
  { family: 'Test Mono', weight: '400', file: '@fontsource/dejavu-mono/files/dejavu-mono-latin-400-normal.woff2' },
  { family: 'Test Mono', weight: '700', file: '@fontsource/dejavu-mono/files/dejavu-mono-latin-700-normal.woff2' },
].map((font, nth) => ({ ...font, path: `/test-fonts/${nth}.woff2` }))

/** Values that differ between runs, as regular expressions, with their replacements. */
const RANDOM_VALUES = [
  // UIDs.
  ['\\b[\\da-f]{8}(-[\\da-f]{4}){3}-[\\da-f]{12}\\b', '00000000-0000-4000-8000-000000000000'],
  // Suffixes of pods.
  ['\\b(web-[a-z\\d]{8,10})-[a-z\\d]{5}\\b', '$1-abcde'],
  // Ages that the server computes, durations of searches, and ports.
  ['\\b\\d+[sm](\\d+s)? ago\\b', '1s ago'],
  ['\\bin [\\d.]+ ms\\b', 'in 1 ms'],
  ['\\b127\\.0\\.0\\.1:\\d+\\b', '127.0.0.1:6443'],
]
/** Maximum number of screenshots that are taken until two in a row are equal. */
const MAX_ATTEMPTS = 40

/** Fixes the clock and the fonts of all documents that the page loads from now on. */
export async function prepare(page) {
  const { resolve } = createRequire(import.meta.url)
  for (const { path, file } of FONTS) {
    const body = await readFile(resolve(file))
    await page.route(`**${path}`, (route) => route.fulfill({ body, contentType: 'font/woff2' }))
  }
  await page.addInitScript((fonts) => {
    for (const { family, weight, path } of fonts) document.fonts.add(new FontFace(family, `url(${path})`, { weight }))
    // A constructed style sheet, because the page's content security policy forbids other style sheets.
    const sheet = new CSSStyleSheet()
    sheet.replaceSync(`:root { --mono: 'Test Mono' !important } body { font-family: 'Test Sans' !important } .log time, .xterm, .cm-editor * { font-family: 'Test Mono' !important }`)
    const adopt = () => (document.adoptedStyleSheets = [sheet])
    adopt()
    addEventListener('DOMContentLoaded', adopt)
  }, FONTS)
  await page.clock.setFixedTime(new Date(Date.now() + CLOCK_OFFSET_MS))
}

/** Runs in the page: replaces random values in all texts. Editors are skipped, because they restore their text. */
function replaceRandomValues(values) {
  const expressions = values.map(([source, replacement]) => [new RegExp(source, 'g'), replacement])
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
  while (texts.nextNode()) {
    const text = texts.currentNode
    if (text.parentElement.closest('.cm-editor')) continue
    const replaced = expressions.reduce((data, [expression, replacement]) => data.replace(expression, replacement), text.data)
    if (replaced !== text.data) text.data = replaced
  }
}

/** Takes a screenshot once the page is stable: no part is being loaded, and two screenshots in a row are equal. Elements in `mask` are covered. */
export async function takeScreenshot(page, mask) {
  await page.waitForFunction(() => document.querySelector('.skeleton') === null)
  // Load all fonts now, including those that no text has used yet: a font that is loaded later changes the layout.
  await page.evaluate(() => Promise.all(Array.from(document.fonts, (font) => font.load())).then(() => undefined))
  let last
  for (let attempt = 0; attempt < MAX_ATTEMPTS; attempt += 1) {
    await page.evaluate(replaceRandomValues, RANDOM_VALUES)
    const screenshot = await page.screenshot({ animations: 'disabled', caret: 'hide', scale: 'css', mask, maskColor: '#808080' })
    if (last?.equals(screenshot)) return screenshot
    last = screenshot
  }
  throw new Error(`${page.url()} does not become stable`)
}
