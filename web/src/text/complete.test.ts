// Every text exists in both languages, and there are no texts outside of the catalogues.
import ts from 'typescript'
import { describe, expect, test } from 'vitest'
import type { Locale } from '../prefs'
import { analysisText } from './analysis'
import { queryText } from './query'
import { bulkText } from './bulk'
import { en } from './en'
import { fleetText } from './fleet'
import { historyText } from './history'
import { homeText } from './home'
import { journalText } from './journal'
import { objectText } from './object'
import { resultsText } from './results'
import { propagationText } from './propagation'
import { zh } from './zh-CN'

const CATALOGUES: Record<string, Record<Locale, object>> = { page: { en, 'zh-CN': zh }, analysis: analysisText, queryText, bulk: bulkText, fleet: fleetText, history: historyText, home: homeText, journal: journalText, objectText, results: resultsText, steer: propagationText }
/** Proper names that are the same in every language. */
const SAME_IN_ALL_LANGUAGES = new Set(['CPU', 'YAML', 'UID', 'API', 'Pod', 'Work', 'Finalizers', 'Generation', 'Shell', 'init'])
/** Keys, queries, commands, and languages by their own names. */
const UNTRANSLATED_PATHS = /^(locale|commandNames\.en|(keyTable|languageTable)\.\d+\.0|atHint|fromHint|toHint)$/

/** Texts by path: `tabs.yaml`, `keyTable.2.1`; functions by their results for sample arguments. */
function flattenTexts(catalogue: object, path = ''): [string, string][] {
  return Object.entries(catalogue).flatMap(([key, value]): [string, string][] => {
    const at = `${path}${key}`
    if (typeof value === 'function') return [[at, String((value as (...given: unknown[]) => unknown)(...Array.from({ length: value.length }, () => 2)))]]
    return typeof value === 'object' && value !== null ? flattenTexts(value as object, `${at}.`) : [[at, String(value)]]
  })
}

/** Names that only one language needs, because the other uses those of the server or a library. */
const ONE_LANGUAGE_PATHS = /^(tiles|editorPhrases)\./

describe.each(Object.entries(CATALOGUES))('texts of %s', (_, { en, 'zh-CN': zh }) => {
  const english = new Map(flattenTexts(en).filter(([at]) => !ONE_LANGUAGE_PATHS.test(at)))
  const chinese = new Map(flattenTexts(zh).filter(([at]) => !ONE_LANGUAGE_PATHS.test(at)))

  test('exist in both languages', () => {
    expect([...chinese.keys()].sort()).toEqual([...english.keys()].sort())
  })

  test('are Chinese in Chinese', () => {
    const untranslated = [...chinese].filter(([at, text]) => /\p{L}{2,}/u.test(text) && !/\p{Script=Han}/u.test(text) && !SAME_IN_ALL_LANGUAGES.has(text) && !UNTRANSLATED_PATHS.test(at))
    expect(untranslated).toEqual([])
  })
})

/** Attributes that users see or hear. */
const TEXT_ATTRIBUTES = new Set(['title', 'alt', 'placeholder', 'label', 'aria-label', 'aria-description', 'aria-roledescription', 'aria-valuetext'])
/** Names, keys, types of Events and queries, which are the same in every language. */
const UNTRANSLATED_TEXT = /^(Crowsnest|English|简体中文|Ctrl-.|Warning|Normal|(-?[a-z]+:\S+ ?)+.*)$/

/** Texts in a file that would be shown in one language only. */
function findTexts(name: string, source: string): string[] {
  const file = ts.createSourceFile(name, source, ts.ScriptTarget.Latest, true, ts.ScriptKind.TSX)
  const found: string[] = []
  const report = (text: string) => {
    const words = text.trim()
    if (/\p{L}{2,}/u.test(words) && !UNTRANSLATED_TEXT.test(words)) found.push(`${name}: ${words}`)
  }
  /** String literals of a displayed expression, in all its branches. */
  const visitExpression = (node: ts.Expression): void => {
    if (ts.isStringLiteralLike(node)) report(node.text)
    else if (ts.isTemplateExpression(node)) [node.head, ...node.templateSpans.map(({ literal }) => literal)].forEach(({ text }) => report(text))
    else if (ts.isParenthesizedExpression(node)) visitExpression(node.expression)
    else if (ts.isConditionalExpression(node)) [node.whenTrue, node.whenFalse].forEach(visitExpression)
    else if (ts.isBinaryExpression(node) && /^(&&|\|\||\?\?|\+)$/.test(node.operatorToken.getText())) [node.left, node.right].forEach(visitExpression)
  }
  const visit = (node: ts.Node): void => {
    if (ts.isJsxText(node)) report(node.text)
    if (ts.isJsxExpression(node) && node.expression && !ts.isJsxAttribute(node.parent)) visitExpression(node.expression)
    if (ts.isJsxAttribute(node) && TEXT_ATTRIBUTES.has(node.name.getText()) && node.initializer) {
      if (ts.isStringLiteral(node.initializer)) report(node.initializer.text)
      else if (ts.isJsxExpression(node.initializer) && node.initializer.expression) visitExpression(node.initializer.expression)
    }
    ts.forEachChild(node, visit)
  }
  visit(file)
  return found
}

test('texts in views are detected', () => {
  const source = 'const a = <p title="one">two {b ? "three" : `four ${c}`} <i aria-label={d ?? "five"} className="no">{n}</i> · {"x"}</p>'
  expect(findTexts('a', source)).toEqual(['a: one', 'a: two', 'a: three', 'a: four', 'a: five'])
})

test('views contain no texts of their own', () => {
  const files = import.meta.glob<string>('../**/*.tsx', { query: '?raw', import: 'default', eager: true })
  expect(Object.keys(files).length).toBeGreaterThan(40)
  expect(Object.entries(files).flatMap(([name, source]) => findTexts(name, source))).toEqual([])
})
