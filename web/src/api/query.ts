// The query text is the whole search state: these functions edit it as text.
import { fieldNamed, OUTPUT } from './fields'
import { isNameOf } from './kinds'

/** A value in the syntax of the query language: quoted if it contains special characters. */
export function quote(value: string): string {
  return /^[\w.@/-]+$/.test(value) && !/^[-/]/.test(value) ? value : `"${value.replace(/["\\]/g, '\\$&')}"`
}

/** A top-level term with plain values of a field and nothing else. */
interface Term {
  text: string
  field?: string
  /** The field as written. */
  as?: string
  excluded: boolean
  values: string[]
}

/** Adds `field:value` (or `-field:value`), or removes it if present. */
export function toggle(query: string, field: string, value: string, exclude = false): string {
  const terms = parts(query)
  const there = terms.some((term) => term.excluded === exclude && holds(term, field, value))
  const rest = terms.map((term) => (holds(term, field, value) ? without(term, value) : term.text)).filter((text) => text !== '')
  return there ? rest.join(' ') : and(query, rest, `${exclude ? '-' : ''}${written(field, quote(value))}`)
}

/** Whether the query includes or excludes the value. */
export function chosen(query: string, field: string, value: string): 'asked' | 'excluded' | undefined {
  const term = parts(query).find((term) => holds(term, field, value))
  return term && (term.excluded ? 'excluded' : 'asked')
}

/** Values of a field in the query. */
export function named(query: string, field: string): string[] {
  return parts(query)
    .filter((term) => term.field === fieldNamed(field))
    .flatMap((term) => term.values)
}

export interface Sorted {
  by: string
  descending: boolean
}

/** The first column of `sort:`. */
export function sorting(query: string): Sorted | undefined {
  const [first] = named(query, 'sort')
  if (!first) return undefined
  return { by: first.replace(/^-/, ''), descending: first.startsWith('-') }
}

/** Sorts by a column; called again: in reverse; a third time: removes the sort. */
export function sortBy(query: string, column: string): string {
  const now = sorting(query)
  const rest = parts(query)
    .filter((term) => term.field !== 'sort')
    .map((term) => term.text)
  if (now?.by !== column) return [...rest, `sort:${column}`].join(' ')
  return (now.descending ? rest : [...rest, `sort:-${column}`]).join(' ')
}

const isTime = ({ field }: Term) => field === 'at' || field === 'during'

/** True if the query refers to another time than now. */
export function ofThePast(query: string): boolean {
  return parts(query).some(isTime)
}

/** Value of the first `at:` or `during:`. */
export function timeOf(query: string): string | undefined {
  return parts(query).find(isTime)?.values.join()
}

/** The query about the present. */
export function ofNow(query: string): string {
  return replaced(query, ['at', 'during'])
}

/** The query without the terms of these fields, and with another term. */
export function replaced(query: string, fields: readonly string[], term?: string): string {
  const rest = parts(query)
    .filter(({ field }) => field === undefined || !fields.includes(field))
    .map(({ text }) => text)
  return term === undefined ? rest.join(' ') : and(rest.join(' '), rest, term)
}

/** True if the query limits the number of hits. */
export function limited(query: string): boolean {
  return named(query, 'limit').length > 0
}

function written(field: string, value: string): string {
  return field.startsWith('label:') ? `${field}=${value}` : `${field}:${value}`
}

/** Everything before it and the new term: a top-level OR is put into parentheses first, since AND binds tighter. */
function and(query: string, terms: string[], added: string): string {
  if (!split(query).includes('OR')) return [...terms, added].join(' ')
  const output = terms.filter((text) => isOutput(read(text)))
  const asked = terms.filter((text) => !output.includes(text))
  return [`(${asked.join(' ')})`, added, ...output].join(' ')
}

function isOutput({ field }: Term): boolean {
  return field !== undefined && OUTPUT.has(field)
}

/**
 * The top-level terms in order; an AND between them is implied. With a top-level OR, terms do not all apply and are
 * returned as text, except for those that control the result.
 */
function parts(query: string): Term[] {
  const texts = split(query)
  const joined = texts.flatMap((text, nth) => (text === 'NOT' && nth + 1 < texts.length ? [] : texts[nth - 1] === 'NOT' ? [`NOT ${text}`] : [text]))
  const terms = joined.map(read)
  if (!texts.includes('OR')) return terms.filter(({ text }) => text !== 'AND')
  return terms.map((term) => (isOutput(term) ? term : { text: term.text, excluded: false, values: [] }))
}

function read(text: string): Term {
  const bare = text.replace(/^(?:[-!]|NOT\s+)/, '')
  const signed = bare !== text
  const parts = /^([^:"()\s]+):(=?)(.*)$/s.exec(bare)
  const field = parts ? fieldNamed(parts[1]!) : undefined
  const plain = { text, excluded: signed, values: [] }
  if (!parts || field === undefined) return plain
  const inner = parts[3]!.startsWith('!')
  const values = list(inner ? parts[3]!.slice(1) : parts[3]!)
  return { ...plain, field, as: parts[1]!, excluded: signed !== inner, values }
}

/** Splits values at commas outside quotes; quoted values stay as they are. */
function list(text: string): string[] {
  const values = text.match(/"(?:\\[\s\S]|[^"\\])*"?|[^,"]+/g) ?? []
  return values.map((value) => (value.startsWith('"') ? value.slice(1, value.length > 1 && value.endsWith('"') ? -1 : undefined).replace(/\\([\s\S])/g, '$1') : value))
}

function holds(term: Term, field: string, value: string): boolean {
  const label = /^label:(.*)$/.exec(field)
  const wanted = label ? `${label[1]}=${value}` : value
  if (term.field !== (label ? 'label' : fieldNamed(field))) return false
  return term.values.some((other) => isSame(term.field, other, wanted))
}

/** Whether two values of a field mean the same; a kind also has a plural and short names. */
export const isSame = (field: string | undefined, written: string, value: string) => written.toLowerCase() === value.toLowerCase() || (field === 'kind' && isNameOf(written, value))

/** The term without one of its values; empty if none is left. */
function without(term: Term, value: string): string {
  const left = term.values.filter((other) => !isSame(term.field, other, value))
  if (left.length === 0 || left.length === term.values.length) return ''
  return `${term.excluded ? '-' : ''}${term.as}:${left.map(quote).join(',')}`
}

/** Splits at blanks outside quotes and parentheses. */
export function split(query: string): string[] {
  const terms: string[] = []
  let term = ''
  let quoted = false
  let depth = 0
  for (let i = 0; i < query.length; i++) {
    const c = query[i]!
    if (quoted && c === '\\') {
      term += c + (query[++i] ?? '')
      continue
    }
    if (c === '"') quoted = !quoted
    if (!quoted && c === '(') depth++
    if (!quoted && c === ')') depth--
    if (!quoted && depth <= 0 && /\s/.test(c)) {
      if (term) terms.push(term)
      term = ''
    } else term += c
  }
  if (term) terms.push(term)
  return terms
}
