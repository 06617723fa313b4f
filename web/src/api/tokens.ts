// Tokenizer for syntax highlighting of queries. It follows the server's lexer (index/query/src/lex.rs) as far as highlighting needs it, and
// accepts any text; errors are reported by the server's notices.
import { canonicalField } from './fields'

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

export function tokenize(query: string): Token[] {
  const result: Token[] = []
  // One element for each open parenthesis: true if it contains values of a field.
  const parentheses: boolean[] = []
  let at = 0
  const push = (kind: TokenKind, length: number) => {
    result.push({ kind, start: at, end: at + length })
    at += length
  }
  const matchLength = (pattern: RegExp) => pattern.exec(query.slice(at))?.[0].length ?? 0
  /** Adds the tokens of a value or, outside of a field, of a word. */
  const tokenizeValue = (plain: TokenKind) => {
    const sign = plain === 'value' ? matchLength(COMPARE) : 0
    if (sign > 0) push('compare', sign)
    const quoted = matchLength(QUOTED)
    const regex = matchLength(REGEX)
    if (quoted > 0) push('quoted', quoted)
    else if (regex > 0) push('regex', regex)
    else {
      const length = wordLength(query.slice(at), plain === 'value')
      if (length > 0) push(plain, length)
    }
  }
  while (at < query.length) {
    const rest = query.slice(at)
    const blank = matchLength(/^\s+/)
    if (blank > 0) at += blank
    else if (OPERATOR.test(rest)) push('operator', matchLength(OPERATOR))
    else if (rest[0] === '(') {
      parentheses.push(false)
      push('paren', 1)
    } else if (rest[0] === ')') {
      parentheses.pop()
      push('paren', 1)
    } else if (/^[-!]\S/.test(rest)) push('not', 1)
    else if (/^has\.\w+\(/.test(rest)) {
      push('field', matchLength(/^has\.\w+/))
    } else {
      const field = FIELD.exec(rest)
      if (field && canonicalField(field[1]!) !== undefined) {
        push('field', field[0].length)
        if (query[at] === '(') {
          parentheses.push(true)
          push('paren', 1)
        } else {
          tokenizeValue('value')
          while (query[at] === ',') {
            push('operator', 1)
            tokenizeValue('value')
          }
        }
      } else {
        const before = at
        tokenizeValue(parentheses.at(-1) ? 'value' : 'text')
        if (at === before) push('text', 1)
      }
    }
  }
  return result
}

/** Length of a bare word: up to a blank, a comma between values, or a parenthesis that it did not open. */
function wordLength(text: string, endsAtComma: boolean): number {
  let depth = 0
  for (let i = 0; i < text.length; i++) {
    const c = text[i]!
    if (/\s/.test(c) || (endsAtComma && c === ',' && depth === 0)) return i
    if (c === '(') depth++
    if (c === ')' && depth-- === 0) return i
  }
  return text.length
}

const bytes = new TextEncoder()

/** The UTF-8 byte offset of a character index: the server counts in bytes. */
export function byteOffset(text: string, index: number): number {
  return bytes.encode(text.slice(0, index)).length
}

/** The character index at a UTF-8 byte offset of a text. */
export function characterOffset(text: string, byteIndex: number): number {
  let bytesBefore = 0
  let index = 0
  for (const c of text) {
    if (bytesBefore >= byteIndex) break
    bytesBefore += bytes.encode(c).length
    index += c.length
  }
  return index
}
