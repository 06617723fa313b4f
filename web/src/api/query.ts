// Reads and edits the text of a query, which is the complete state of a search.
import { canonicalField, RESULT_FIELDS } from './fields'
import { isKindName } from './kinds'

/** A value in the syntax of the query language: quoted if it contains special characters. */
export function quote(value: string): string {
  return /^[\w.@/-]+$/.test(value) && !/^[-/]/.test(value) ? value : `"${value.replace(/["\\]/g, '\\$&')}"`
}

/** A top-level term. `field` and `values` are set if it has the form `field:value,value`. */
interface Term {
  text: string
  field?: string
  /** The field's name as it is written in the query, possibly an alias. */
  writtenField?: string
  isExcluded: boolean
  values: string[]
}

/** Adds `field:value` (or `-field:value`), or removes it if present. */
export function toggleTerm(query: string, field: string, value: string, exclude = false): string {
  const terms = parseTerms(query)
  const isPresent = terms.some((term) => term.isExcluded === exclude && hasValue(term, field, value))
  const rest = terms.map((term) => (hasValue(term, field, value) ? withoutValue(term, value) : term.text)).filter((text) => text !== '')
  return isPresent ? rest.join(' ') : appendTerm(query, rest, `${exclude ? '-' : ''}${formatTerm(field, quote(value))}`)
}

/** Returns whether the query includes or excludes a value; undefined if it does neither. */
export function selectionOf(query: string, field: string, value: string): 'included' | 'excluded' | undefined {
  const term = parseTerms(query).find((term) => hasValue(term, field, value))
  return term && (term.isExcluded ? 'excluded' : 'included')
}

/** Values of a field in the query. */
export function fieldValues(query: string, field: string): string[] {
  return parseTerms(query)
    .filter((term) => term.field === canonicalField(field))
    .flatMap((term) => term.values)
}

/** Texts of the terms of these fields, included and excluded ones. */
export function termsOf(query: string, fields: readonly string[]): string[] {
  return parseTerms(query)
    .filter(({ field }) => field !== undefined && fields.includes(field))
    .map(({ text }) => text)
}

export interface SortOrder {
  column: string
  descending: boolean
}

/** The first column of `sort:`, and its direction. */
export function sortOrderOf(query: string): SortOrder | undefined {
  const [first] = fieldValues(query, 'sort')
  if (!first) return undefined
  return { column: first.replace(/^-/, ''), descending: first.startsWith('-') }
}

/** Sorts by a column. A second call for the column reverses the order, and a third call removes it. */
export function sortBy(query: string, column: string): string {
  const current = sortOrderOf(query)
  const rest = parseTerms(query)
    .filter((term) => term.field !== 'sort')
    .map((term) => term.text)
  if (current?.column !== column) return [...rest, `sort:${column}`].join(' ')
  return (current.descending ? rest : [...rest, `sort:-${column}`]).join(' ')
}

const isTime = ({ field }: Term) => field === 'at' || field === 'during'

/** True if the query refers to another time than now. */
export function isAboutPast(query: string): boolean {
  return parseTerms(query).some(isTime)
}

/** Value of the first `at:` or `during:`. */
export function timeOf(query: string): string | undefined {
  return parseTerms(query).find(isTime)?.values.join()
}

/** The query without its time, so that it is about the present. */
export function withoutTime(query: string): string {
  return replaceTerms(query, ['at', 'during'])
}

/** Removes the terms of these fields and, if given, adds another term. */
export function replaceTerms(query: string, fields: readonly string[], term?: string): string {
  const rest = parseTerms(query)
    .filter(({ field }) => field === undefined || !fields.includes(field))
    .map(({ text }) => text)
  return term === undefined ? rest.join(' ') : appendTerm(rest.join(' '), rest, term)
}

/** True if the query limits the number of hits. */
export function hasLimit(query: string): boolean {
  return fieldValues(query, 'limit').length > 0
}

function formatTerm(field: string, value: string): string {
  return field.startsWith('label:') ? `${field}=${value}` : `${field}:${value}`
}

/** Adds a term to the other terms of a query. A top-level OR is put into parentheses first, because AND binds tighter. */
function appendTerm(query: string, terms: string[], added: string): string {
  if (!splitTerms(query).includes('OR')) return [...terms, added].join(' ')
  const resultTerms = terms.filter((text) => controlsResult(parseTerm(text)))
  const conditions = terms.filter((text) => !resultTerms.includes(text))
  return [`(${conditions.join(' ')})`, added, ...resultTerms].join(' ')
}

/** True for a term that controls the result, such as its order, instead of restricting it. */
function controlsResult({ field }: Term): boolean {
  return field !== undefined && RESULT_FIELDS.has(field)
}

/** The query that was parsed last. Views call functions of this module for each facet value, of the same query. */
let lastParsed: { query: string; terms: readonly Term[] } = { query: '', terms: [] }

function parseTerms(query: string): readonly Term[] {
  if (lastParsed.query !== query) lastParsed = { query, terms: parseQuery(query) }
  return lastParsed.terms
}

/**
 * The top-level terms in order, without AND operators. In a query with a top-level OR a term does not apply to all hits, so terms are
 * returned as text only, except for those that control the result.
 */
function parseQuery(query: string): Term[] {
  const texts = splitTerms(query)
  const joined = texts.flatMap((text, nth) => (text === 'NOT' && nth + 1 < texts.length ? [] : texts[nth - 1] === 'NOT' ? [`NOT ${text}`] : [text]))
  const terms = joined.map(parseTerm)
  if (!texts.includes('OR')) return terms.filter(({ text }) => text !== 'AND')
  return terms.map((term) => (controlsResult(term) ? term : { text: term.text, isExcluded: false, values: [] }))
}

function parseTerm(text: string): Term {
  const bare = text.replace(/^(?:[-!]|NOT\s+)/, '')
  const isNegated = bare !== text
  const parts = /^([^:"()\s]+):(=?)(.*)$/s.exec(bare)
  const field = parts ? canonicalField(parts[1]!) : undefined
  const plain = { text, isExcluded: isNegated, values: [] }
  if (!parts || field === undefined) return plain
  const isNegatedValue = parts[3]!.startsWith('!')
  const values = splitValues(isNegatedValue ? parts[3]!.slice(1) : parts[3]!)
  return { ...plain, field, writtenField: parts[1]!, isExcluded: isNegated !== isNegatedValue, values }
}

/** Splits values at commas outside quotes; quoted values stay as they are. */
function splitValues(text: string): string[] {
  const values = text.match(/"(?:\\[\s\S]|[^"\\])*"?|[^,"]+/g) ?? []
  return values.map((value) => (value.startsWith('"') ? value.slice(1, value.length > 1 && value.endsWith('"') ? -1 : undefined).replace(/\\([\s\S])/g, '$1') : value))
}

function hasValue(term: Term, field: string, value: string): boolean {
  const label = /^label:(.*)$/.exec(field)
  const expected = label ? `${label[1]}=${value}` : value
  if (term.field !== (label ? 'label' : canonicalField(field))) return false
  return term.values.some((existing) => isSameValue(term.field, existing, expected, term.isExcluded))
}

/**
 * True if two values of a field are equal, ignoring case; a kind also has a plural and short names. After a kind with its group is excluded, the
 * result can still contain kinds of that name, which are those of other groups.
 */
export const isSameValue = (field: string | undefined, writtenValue: string, value: string, isExcluded: boolean) =>
  writtenValue.toLowerCase() === value.toLowerCase() || (field === 'kind' && isKindName(writtenValue, value, !isExcluded))

/** The term without one of its values; empty if none is left. */
function withoutValue(term: Term, value: string): string {
  const remaining = term.values.filter((existing) => !isSameValue(term.field, existing, value, term.isExcluded))
  if (remaining.length === 0 || remaining.length === term.values.length) return ''
  return `${term.isExcluded ? '-' : ''}${term.writtenField}:${remaining.map(quote).join(',')}`
}

/** Splits at blanks outside quotes and parentheses. */
export function splitTerms(query: string): string[] {
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
