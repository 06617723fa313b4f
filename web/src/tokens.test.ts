// Contrast of the colours in both themes, by WCAG 2.2: 4.5 for text, 3 for graphics. Also the type scale and the grid of distances.
import { describe, expect, test } from 'vitest'
import css from './tokens.css?raw'

const THEMES = ['light', 'dark'] as const
type Theme = (typeof THEMES)[number]

const COLOURS = new Map([...css.matchAll(/--([\w-]+): light-dark\((#\w+), (#\w+)\);/g)].map(([, name, light, dark]) => [name, { light, dark }]))

function luminance(hex: string): number {
  const [r = 0, g = 0, b = 0] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
  return 0.2126 * r + 0.7152 * g + 0.0722 * b
}

function contrast(front: string, back: string, theme: Theme): number {
  const [a, b] = [front, back].map((name) => luminance(COLOURS.get(name)?.[theme] ?? '')) as [number, number]
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)
}

const SURFACES = ['bg', 'raised', 'sunken', 'chosen']
const TONES = ['good', 'busy', 'warn', 'bad', 'idle']
const PAIRS: [string, string, number][] = [
  ...['text', 'muted', 'accent', 'good', 'busy', 'warn', 'bad', 'value', 'pattern'].flatMap((front) => SURFACES.map((back): [string, string, number] => [front, back, 4.5])),
  ...TONES.flatMap((tone): [string, string, number][] => [
    [tone, `${tone}-tint`, 4.5],
    ['text', `${tone}-tint`, 4.5],
  ]),
  ['on-accent', 'accent', 4.5],
  ['accent', 'warn-tint', 4.5],
  // Text in an editor, with its syntax colours.
  ...['match', 'added', 'added-words', 'removed', 'removed-words'].flatMap((back) => ['text', 'muted', 'accent', 'value', 'pattern'].map((front): [string, string, number] => [front, back, 4.5])),
  // Borders of controls, bars and lines of charts, edges and outlines.
  ...['control', 'bar', 'bar-bad', 'warn', 'bad', 'good', 'muted', 'accent', 'pattern'].flatMap((front) => SURFACES.map((back): [string, string, number] => [front, back, 3])),
]

describe.each(THEMES)('in the %s theme', (theme) => {
  test.each(PAIRS)('%s on %s has a contrast of at least %f', (front, back, least) => {
    expect(contrast(front, back, theme)).toBeGreaterThanOrEqual(least)
  })
})

const SHEETS = import.meta.glob<string>('./**/*.css', { query: '?raw', import: 'default', eager: true })
const EDITOR_THEMES = import.meta.glob<string>('./parts/{Editor.tsx,lint.ts}', { query: '?raw', import: 'default', eager: true })

test('every colour is a token of both themes', () => {
  const literals = Object.entries({ ...SHEETS, ...EDITOR_THEMES }).flatMap(([name, text]) =>
    name === './tokens.css' ? [] : [...text.matchAll(/(?<![&\w])#[0-9a-f]{3,8}\b|light-dark\(/gi)].map(([colour]) => `${name}: ${colour}`),
  )
  expect(Object.keys(EDITOR_THEMES)).toHaveLength(2)
  expect(literals).toEqual([])
})

/** Declarations of all style sheets, without comments. */
const DECLARATIONS = Object.entries(SHEETS).flatMap(([name, text]) =>
  [...text.replace(/\/\*[\s\S]*?\*\//g, '').matchAll(/([\w-]+)\s*:\s*([^;{}]+)[;}]/g)].map(([, property = '', value = '']) => ({ name, property, value })),
)

test('every size of text is a token of the type scale', () => {
  const scale = [...css.matchAll(/--type-(\d+): (\d+)px;/g)].map(([, name, size]) => [name, size])
  expect(scale.map(([, size]) => size)).toEqual(['12', '13', '14', '16', '20', '28'])
  expect(scale.filter(([name, size]) => name !== size)).toEqual([])
  const sizes = DECLARATIONS.filter(({ property }) => /^font(-size)?$/.test(property))
  expect(sizes.filter(({ value }) => !/^(var\(--type-\d+\)|inherit)/.test(value))).toEqual([])
  expect(Object.values(EDITOR_THEMES).flatMap((text) => text.match(/font(Size)?: '(?!var\(--type-)[^']*'/g) ?? [])).toEqual([])
})

/** Properties that are no distances: lines, corners, shadows, and the place of a line or an icon in a text. */
const OFF_GRID_PROPERTIES = /^(border.*|outline.*|box-shadow|stroke.*|text-underline-offset|vertical-align|font|--radius|--type-\d+)$/

test('distances are on the grid of 4 px', () => {
  // 1 px is the width of a line, or the space between two bars.
  const isOnGrid = (px: string) => Number(px) % 4 === 0 || px === '1'
  const offGrid = DECLARATIONS.filter(({ property, value }) => !OFF_GRID_PROPERTIES.test(property) && [...value.matchAll(/(?<![\w.])(\d+(?:\.\d+)?)px/g)].some(([, px = '']) => !isOnGrid(px)))
  expect(offGrid).toEqual([])
  expect(DECLARATIONS.length).toBeGreaterThan(300)
})
