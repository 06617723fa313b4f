// YAML as Kubernetes reads and writes it: version 1.1, where `yes` is a boolean, but without timestamps.
import { LineCounter, parseAllDocuments, parseDocument, stringify, type Document, type ParsedNode, type Tags } from 'yaml'

export interface Problem {
  message: string
  /** Range in characters of the text. */
  from: number
  to: number
}

/** Tags that the API server treats as plain strings. */
const STRING_TAGS = ['tag:yaml.org,2002:timestamp']
const tags = (defaults: Tags): Tags => defaults.filter((tag) => typeof tag === 'string' || !(STRING_TAGS.includes(tag.tag) || tag.format === 'TIME'))

const KUBERNETES_OPTIONS = { version: '1.1', customTags: tags, prettyErrors: false, uniqueKeys: true, intAsBigInt: true } as const

/** The parsed value, or undefined with the errors. */
export interface ParsedYaml {
  value: unknown
  problems: Problem[]
}

/** Parses a text with one document. */
export function parseYaml(text: string): ParsedYaml {
  const lines = new LineCounter()
  return convertDocument(parseDocument(text, { ...KUBERNETES_OPTIONS, lineCounter: lines }), text, lines)
}

export type ParsedDocument = ParsedYaml & { document: Document.Parsed<ParsedNode> }

/** Parses all documents of a text; empty ones are skipped. */
export function parseAllYaml(text: string): ParsedDocument[] {
  const lines = new LineCounter()
  const documents = parseAllDocuments(text, { ...KUBERNETES_OPTIONS, lineCounter: lines })
  if (!Array.isArray(documents)) return []
  return (documents as Document.Parsed<ParsedNode>[])
    .map((document) => ({ document, ...convertDocument(document, text, lines) }))
    .filter(({ value, problems }) => problems.length > 0 || (value ?? undefined) !== undefined)
}

function convertDocument(document: Document.Parsed<ParsedNode>, text: string, lines: LineCounter): ParsedYaml {
  const problems = document.errors.map(({ message, pos: [from, to] }) => {
    const { line, col } = lines.linePos(from)
    return { message: `${message} (${line}:${col})`, from: Math.min(from, text.length), to: Math.min(Math.max(from, to), text.length) }
  })
  // Excessive alias expansion is detected when an alias is resolved.
  if (problems.length > 0) return { value: undefined, problems }
  try {
    return { value: document.toJS({ maxAliasCount: 100, reviver: toExactNumber }), problems }
  } catch (error) {
    const [from = 0] = document.range ?? []
    return { value: undefined, problems: [{ message: error instanceof Error ? error.message : String(error), from, to: from }] }
  }
}

/** Integers become numbers if exact; an int64 beyond 2^53 stays a bigint. */
const toExactNumber = (_: unknown, value: unknown) => (typeof value === 'bigint' && Number.isSafeInteger(Number(value)) ? Number(value) : value)

/** Serializes a value as YAML. */
export function printYaml(value: unknown): string {
  return stringify(value, { version: '1.1', lineWidth: 0, indentSeq: false, aliasDuplicateObjects: false })
}
