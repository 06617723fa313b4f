// YAML as Kubernetes reads and writes it: version 1.1, where `yes` is a truth value, but without dates and times of its own.
import { LineCounter, parseDocument, stringify, type Tags } from 'yaml'

export interface Problem {
  message: string
  /** In characters of the text. */
  from: number
  to: number
}

/** Tags that the cluster takes for plain text. */
const TEXT = ['tag:yaml.org,2002:timestamp']
const tags = (known: Tags): Tags => known.filter((tag) => typeof tag === 'string' || !(TEXT.includes(tag.tag) || tag.format === 'TIME'))

/** What a text says, or where it can't be read. */
export function parse(text: string): { value: unknown; problems: Problem[] } {
  const lines = new LineCounter()
  const document = parseDocument(text, { version: '1.1', customTags: tags, prettyErrors: false, lineCounter: lines, uniqueKeys: true })
  const problems = document.errors.map(({ message, pos: [from, to] }) => {
    const { line, col } = lines.linePos(from)
    return { message: `${message} (${line}:${col})`, from: Math.min(from, text.length), to: Math.min(to, text.length) }
  })
  // An alias that leads to too much is told when it is followed.
  if (problems.length > 0) return { value: undefined, problems }
  try {
    return { value: document.toJS({ maxAliasCount: 100 }), problems }
  } catch (error) {
    return { value: undefined, problems: [{ message: error instanceof Error ? error.message : String(error), from: 0, to: 0 }] }
  }
}

export function print(value: unknown): string {
  return stringify(value, { version: '1.1', lineWidth: 0, indentSeq: false, aliasDuplicateObjects: false })
}
