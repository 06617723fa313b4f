// Pictures of the documentation, taken by the tests of the features that they show.
import { access, mkdir } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { isUpdate, writePicture } from './screenshots.mjs'

const FOLDER = join(dirname(fileURLToPath(import.meta.url)), '../../docs/pictures')
/** Playwright's options of a browser context with the size of a picture. */
export const CONTEXT = { viewport: { width: 1200, height: 750 }, deviceScaleFactor: 1 }

/** With UPDATE_SCREENSHOTS=1, takes the picture `name` of the page. Otherwise, fails if the documentation has no such picture. */
export async function takePicture(page, name) {
  const file = join(FOLDER, `${name}.png`)
  if (!isUpdate) return access(file)
  await mkdir(dirname(file), { recursive: true })
  await page.waitForFunction(() => document.querySelector('.skeleton') === null)
  await writePicture(file, await page.screenshot({ animations: 'disabled', caret: 'hide', scale: 'css' }))
}
