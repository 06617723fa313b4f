// Contrast of the colours in both themes, by WCAG 2.2: 4.5 for text, 3 for borders of controls and for bars.
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
  ['control', 'raised', 3],
  ['control', 'bg', 3],
  ['bar-bad', 'raised', 3],
]

describe.each(THEMES)('in the %s theme', (theme) => {
  test.each(PAIRS)('%s on %s has a contrast of at least %f', (front, back, least) => {
    expect(contrast(front, back, theme)).toBeGreaterThanOrEqual(least)
  })
})

test('every colour is a token of both themes', () => {
  const sheets = import.meta.glob<string>('./**/*.css', { query: '?raw', import: 'default', eager: true })
  const literals = Object.entries(sheets).flatMap(([name, text]) =>
    name === './tokens.css' ? [] : [...text.matchAll(/(?<![&\w])#[0-9a-f]{3,8}\b|light-dark\(/gi)].map(([colour]) => `${name}: ${colour}`),
  )
  expect(literals).toEqual([])
})
