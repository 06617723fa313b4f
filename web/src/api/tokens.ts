// Splits the query's text for syntax highlighting. Follows the server's lexer (index/query/src/lex.rs) as far as highlighting needs it, and
// accepts any text; the server's notices report errors.
import { fieldNamed } from './fields'

export type TokenKind = 'field' | 'value' | 'quoted' | 'regex' | 'operator' | 'paren' | 'not' | 'compare' | 'text'

export interface Token {
  kind: TokenKind
  start: number
  end: number
}

const OPERATOR = /^(?:AND|OR|NOT)(?=[\s()]|$)/
const FIELD = /^(\.[^\s:[\]]*(?:\[[^\s\]]*\][^\s:[\]]*)*|[\p{L}\p{N}._-]+):=?/u
const QUOTED = /^"(?:\\[\s\S]|[^"\\])*"?/
const REGEX = /^\/(?:\\.|[^/\\])+\/i?(?=[\s,)]|$)/
const COMPARE = /^(?:[<>]=?|!=?|=)/

export function tokens(query: string): Token[] {
  const found: Token[] = []
  // For each open parenthesis: whether it contains values.
  const open: boolean[] = []
  let at = 0
  const take = (kind: TokenKind, length: number) => {
    found.push({ kind, start: at, end: at + length })
    at += length
  }
  const matched = (pattern: RegExp) => pattern.exec(query.slice(at))?.[0].length ?? 0
  /** A value, with its start and end. */
  const value = (plain: TokenKind) => {
    const sign = plain === 'value' ? matched(COMPARE) : 0
    if (sign > 0) take('compare', sign)
    const quoted = matched(QUOTED)
    const regex = matched(REGEX)
    if (quoted > 0) take('quoted', quoted)
    else if (regex > 0) take('regex', regex)
    else {
      const length = word(query.slice(at), plain === 'value')
      if (length > 0) take(plain, length)
    }
  }
  while (at < query.length) {
    const rest = query.slice(at)
    const blank = matched(/^\s+/)
    if (blank > 0) at += blank
    else if (OPERATOR.test(rest)) take('operator', matched(OPERATOR))
    else if (rest[0] === '(') {
      open.push(false)
      take('paren', 1)
    } else if (rest[0] === ')') {
      open.pop()
      take('paren', 1)
    } else if (/^[-!]\S/.test(rest)) take('not', 1)
    else if (/^has\.\w+\(/.test(rest)) {
      take('field', matched(/^has\.\w+/))
    } else {
      const field = FIELD.exec(rest)
      if (field && fieldNamed(field[1]!) !== undefined) {
        take('field', field[0].length)
        if (query[at] === '(') {
          open.push(true)
          take('paren', 1)
        } else {
          value('value')
          while (query[at] === ',') {
            take('operator', 1)
            value('value')
          }
        }
      } else {
        const before = at
        value(open.at(-1) ? 'value' : 'text')
        if (at === before) take('text', 1)
      }
    }
  }
  return found
}

/** Length of a bare word: up to a blank, a comma between values, or a parenthesis that it did not open. */
function word(text: string, commas: boolean): number {
  let depth = 0
  for (let i = 0; i < text.length; i++) {
    const c = text[i]!
    if (/\s/.test(c) || (commas && c === ',' && depth === 0)) return i
    if (c === '(') depth++
    if (c === ')' && depth-- === 0) return i
  }
  return text.length
}

const bytes = new TextEncoder()

/** UTF-8 bytes of the first characters of a text: the server counts in bytes. */
export function toBytes(text: string, index: number): number {
  return bytes.encode(text.slice(0, index)).length
}

/** The character at a byte position of a text. */
export function fromBytes(text: string, wanted: number): number {
  let passed = 0
  let index = 0
  for (const c of text) {
    if (passed >= wanted) break
    passed += bytes.encode(c).length
    index += c.length
  }
  return index
}
