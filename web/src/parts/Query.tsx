import { useMemo } from 'react'
import { fromBytes, tokens } from '../api/tokens'
import type { Notice } from '../api/types'

interface Piece {
  text: string
  kind: string | undefined
  notice: string | undefined
}

/** The query split into spans of one colour and at most one notice. */
function pieces(query: string, notices: Notice[]): Piece[] {
  const marks = notices.flatMap(({ start, end, message }) =>
    start === undefined || end === undefined || end <= start ? [] : [{ start: fromBytes(query, start), end: fromBytes(query, end), message }],
  )
  const found = tokens(query)
  const cuts = new Set([0, query.length, ...found.flatMap((t) => [t.start, t.end]), ...marks.flatMap((m) => [m.start, m.end])])
  const sorted = [...cuts].filter((cut) => cut <= query.length).sort((a, b) => a - b)
  return sorted.slice(1).map((end, nth) => {
    const start = sorted[nth]!
    const within = (span: { start: number; end: number }) => span.start <= start && span.end >= end
    return { text: query.slice(start, end), kind: found.find(within)?.kind, notice: marks.find(within)?.message }
  })
}

/** A query with syntax highlighting; notices of the server are underlined. */
export function Query({ text, notices = [] }: { text: string; notices?: Notice[] }) {
  const shown = useMemo(() => pieces(text, notices), [text, notices])
  return (
    <code className="query">
      {shown.map(({ text, kind, notice }, nth) => (
        <span key={nth} className={`${kind ? `q-${kind}` : ''}${notice ? ' remarked' : ''}`} title={notice}>
          {text}
        </span>
      ))}
    </code>
  )
}
