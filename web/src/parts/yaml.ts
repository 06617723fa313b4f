// YAML as Kubernetes reads and writes it: version 1.1, where `yes` is a boolean, but without timestamps.
import { LineCounter, parseAllDocuments, parseDocument, stringify, type Document, type ParsedNode, type Tags } from 'yaml'

export interface Problem {
  message: string
  /** In characters of the text. */
  from: number
  to: number
}

/** Tags that the API server treats as plain strings. */
const TEXT = ['tag:yaml.org,2002:timestamp']
const tags = (known: Tags): Tags => known.filter((tag) => typeof tag === 'string' || !(TEXT.includes(tag.tag) || tag.format === 'TIME'))

const AS_KUBERNETES = { version: '1.1', customTags: tags, prettyErrors: false, uniqueKeys: true, intAsBigInt: true } as const

/** The parsed value, or the position of the error. */
export interface Parsed {
  value: unknown
  problems: Problem[]
}

export function parse(text: string): Parsed {
  const lines = new LineCounter()
  return said(parseDocument(text, { ...AS_KUBERNETES, lineCounter: lines }), text, lines)
}

export type ParsedDocument = Parsed & { document: Document.Parsed<ParsedNode> }

/** The same for several documents; empty ones are skipped. */
export function parseAll(text: string): ParsedDocument[] {
  const lines = new LineCounter()
  const documents = parseAllDocuments(text, { ...AS_KUBERNETES, lineCounter: lines })
  if (!Array.isArray(documents)) return []
  return (documents as Document.Parsed<ParsedNode>[])
    .map((document) => ({ document, ...said(document, text, lines) }))
    .filter(({ value, problems }) => problems.length > 0 || (value ?? undefined) !== undefined)
}

function said(document: Document.Parsed<ParsedNode>, text: string, lines: LineCounter): Parsed {
  const problems = document.errors.map(({ message, pos: [from, to] }) => {
    const { line, col } = lines.linePos(from)
    return { message: `${message} (${line}:${col})`, from: Math.min(from, text.length), to: Math.min(Math.max(from, to), text.length) }
  })
  // Excessive alias expansion is detected when an alias is resolved.
  if (problems.length > 0) return { value: undefined, problems }
  try {
    return { value: document.toJS({ maxAliasCount: 100, reviver: exact }), problems }
  } catch (error) {
    const [from = 0] = document.range ?? []
    return { value: undefined, problems: [{ message: error instanceof Error ? error.message : String(error), from, to: from }] }
  }
}

/** Integers become numbers if exact; an int64 beyond 2^53 stays a bigint. */
const exact = (_: unknown, value: unknown) => (typeof value === 'bigint' && Number.isSafeInteger(Number(value)) ? Number(value) : value)

export function print(value: unknown): string {
  return stringify(value, { version: '1.1', lineWidth: 0, indentSeq: false, aliasDuplicateObjects: false })
}
