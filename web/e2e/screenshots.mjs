// Comparison of a screenshot with the expected one, and pictures of the documentation.
import { readFile, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { encode } from 'fast-png'
import pixelmatch from 'pixelmatch'
import { PNG } from 'pngjs'

/** Colour distance, from 0 to 1, up to which two pixels are considered equal. Pixels of antialiased edges are ignored. */
const THRESHOLD = 0.03
/** Maximum share of pixels that may differ. */
const TOLERANCE = 0.00005
export const isUpdate = process.env.UPDATE_SCREENSHOTS === '1'
/**
 * Time within which a screenshot must be as expected, because data can arrive after the view is stable. It is shorter for an update, in which all
 * views may differ.
 */
const COMPARISON_TIMEOUT_MS = isUpdate ? 3_000 : 20_000
/** Maximum number of colours of a palette. */
const MAX_COLOURS = 256
/** Initial maximum difference of a channel, from 0 to 255, up to which colours are merged. It is far below `THRESHOLD`. */
const MERGED_DISTANCE = 4

export class Expectation {
  /** The expected screenshot `name` in `expectedFolder`; the actual one and the difference are written to `actualFolder`. */
  constructor(expectedFolder, actualFolder, name) {
    this.expected = join(expectedFolder, `${name}.png`)
    this.actual = join(actualFolder, `${name}.actual.png`)
    this.difference = join(actualFolder, `${name}.difference.png`)
    this.name = name
  }

  /**
   * Takes screenshots with `take` until one is as expected. If none is, returns a message that lists the files, or, in an update, replaces the
   * expected screenshot.
   */
  async compare(take) {
    await Promise.all([this.actual, this.difference].map((file) => rm(file, { force: true })))
    const expected = await readFile(this.expected).then(PNG.sync.read, (error) => {
      if (error.code === 'ENOENT') return undefined
      throw error
    })
    let actual
    let comparison
    const end = Date.now() + COMPARISON_TIMEOUT_MS
    do {
      actual = PNG.sync.read(await take())
      comparison = comparePixels(expected, actual)
      if (comparison.isEqual) return undefined
    } while (Date.now() < end)
    if (isUpdate) {
      await writeFile(this.expected, encodePng(actual))
      return undefined
    }
    await writeFile(this.actual, encodePng(actual))
    if (comparison.difference) await writeFile(this.difference, encodePng(comparison.difference))
    const files = [['expected', this.expected], ['actual', this.actual], ...(comparison.difference ? [['difference', this.difference]] : [])]
    return [`${this.name}: ${comparison.message}`, ...files.map(([label, file]) => `  ${label}: ${file}`)].join('\n')
  }
}

/** Compares two decoded screenshots; `difference` is an image with the differing pixels. */
function comparePixels(expected, actual) {
  if (!expected) return { isEqual: false, message: 'there is no expected screenshot' }
  const { width, height } = actual
  if (expected.width !== width || expected.height !== height) {
    return { isEqual: false, message: `${width} × ${height} pixels, expected ${expected.width} × ${expected.height}` }
  }
  const difference = new PNG({ width, height })
  const count = pixelmatch(expected.data, actual.data, difference.data, width, height, { threshold: THRESHOLD })
  const limit = Math.floor(width * height * TOLERANCE)
  return { isEqual: count <= limit, message: `${count} pixels differ, at most ${limit} may`, difference }
}

/** Writes a screenshot as a picture of the documentation: a PNG file with a palette. */
export async function writePicture(file, screenshot) {
  await writeFile(file, encodePng(PNG.sync.read(screenshot)))
}

/** Encodes a PNG file with a palette, which makes it four times smaller. Similar colours, such as those of antialiased edges, are merged. */
function encodePng({ width, height, data }) {
  const pixels = Uint32Array.from({ length: width * height }, (_, nth) => data.readUInt32BE(nth * 4))
  const counts = new Map()
  for (const pixel of pixels) counts.set(pixel, (counts.get(pixel) ?? 0) + 1)
  const colours = [...counts].sort(([, a], [, b]) => b - a).map(([pixel]) => ({ pixel, rgb: [pixel >>> 24, (pixel >>> 16) & 255, (pixel >>> 8) & 255] }))
  let palette
  for (let distance = MERGED_DISTANCE; palette === undefined || palette.length > MAX_COLOURS; distance += 1) palette = buildPalette(colours, distance)
  const indices = new Map(colours.map(({ pixel, rgb }) => [pixel, findNearest(palette, rgb).index]))
  return encode({ width, height, depth: 8, channels: 1, palette, data: Uint8Array.from(pixels, (pixel) => indices.get(pixel)) }, { zlib: { level: 9 } })
}

/** The most frequent colours that are further than `distance` apart. `colours` are in descending order of frequency. */
function buildPalette(colours, distance) {
  const palette = []
  for (const { rgb } of colours) if (findNearest(palette, rgb).distance > distance) palette.push(rgb)
  return palette
}

/** The nearest colour of a palette, by the largest difference of a channel. */
function findNearest(palette, [red, green, blue]) {
  let nearest = { index: -1, distance: Infinity }
  palette.forEach((colour, index) => {
    const distance = Math.max(Math.abs(colour[0] - red), Math.abs(colour[1] - green), Math.abs(colour[2] - blue))
    if (distance < nearest.distance) nearest = { index, distance }
  })
  return nearest
}
