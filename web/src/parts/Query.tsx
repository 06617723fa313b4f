import { memo, useMemo } from 'react'
import { characterOffset, tokenize } from '../api/tokens'
import type { Notice } from '../api/types'

interface Piece {
  text: string
  kind: string | undefined
  notice: string | undefined
}

/** Splits a query into pieces with one token kind and at most one notice each. */
function splitPieces(query: string, notices: Notice[]): Piece[] {
  const marks = notices.flatMap(({ start, end, message }) =>
    start === undefined || end === undefined || end <= start ? [] : [{ start: characterOffset(query, start), end: characterOffset(query, end), message }],
  )
  const queryTokens = tokenize(query)
  const boundaries = new Set([0, query.length, ...queryTokens.flatMap((t) => [t.start, t.end]), ...marks.flatMap((m) => [m.start, m.end])])
  const sorted = [...boundaries].filter((boundary) => boundary <= query.length).sort((a, b) => a - b)
  return sorted.slice(1).map((end, nth) => {
    const start = sorted[nth]!
    const contains = (span: { start: number; end: number }) => span.start <= start && span.end >= end
    return { text: query.slice(start, end), kind: queryTokens.find(contains)?.kind, notice: marks.find(contains)?.message }
  })
}

const NO_NOTICES: Notice[] = []

/** A query with syntax highlighting; notices of the server are underlined. */
export const Query = memo(function Query({ text, notices = NO_NOTICES }: { text: string; notices?: Notice[] | undefined }) {
  const pieces = useMemo(() => splitPieces(text, notices), [text, notices])
  return (
    <code className="query">
      {pieces.map(({ text, kind, notice }, nth) => (
        <span key={nth} className={`${kind ? `q-${kind}` : ''}${notice ? ' has-notice' : ''}`} title={notice}>
          {text}
        </span>
      ))}
    </code>
  )
})
