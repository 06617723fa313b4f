// The lines before and after the selected line of a log, without filters.
import { useQuery } from '@tanstack/react-query'
import { useMemo } from 'react'
import { viewErrorOf } from '../../api/client'
import { streamEvents } from '../../api/sse'
import { API } from '../../api/searchApi'
import { Skeleton } from '../../parts/Skeleton'
import { useTextOf } from '../../text'
import { objectText as texts } from '../../text/object'
import { describeError } from './describeError'
import { podsOf } from './facts'
import { levelOf } from './level'
import type { LogBuffer, LogSource } from './logBuffer'
import { CONTEXT_LINES, CONTEXT_SPANS_MS, contextKey, ContextWindow, matchingKeys, parseLineId, type ContextLine } from './logContext'
import { logParameters } from './useLogs'

interface LogContextProps {
  lineId: string
  previous: boolean
  /** The lines that match the filters. */
  buffer: LogBuffer
  bufferVersion: number
}

export function LogContext({ lineId, previous, buffer, bufferVersion }: LogContextProps) {
  const t = useTextOf(texts)
  const context = useQuery({ queryKey: ['log context', lineId, previous], queryFn: ({ signal }) => readContext(lineId, previous, signal), staleTime: Infinity })
  const matching = useMemo(() => matchingKeys(linesOf(buffer), lineId), [buffer, bufferVersion, lineId])
  if (viewErrorOf(context.error) !== undefined) return <p role="alert">{describeError(context.error, parseLineId(lineId)?.source.cluster ?? '', t)}</p>
  if (context.data === undefined) return <Skeleton />
  const { before, line, after } = context.data
  if (line === undefined) return <p className="notice">{t.lineNotFound}</p>
  const item = (shown: ContextLine, nth: number) => {
    const isMatch = matching.has(contextKey(shown))
    return (
      <li key={nth} className={levelOf(shown.text)} aria-current={shown === line ? 'true' : undefined}>
        <code>{isMatch ? <mark title={t.matchesFilters}>{shown.text}</mark> : shown.text}</code>
      </li>
    )
  }
  return (
    <div className="around" role="region" aria-label={t.context} tabIndex={0}>
      <p className="notice">{t.linesAround(CONTEXT_LINES)}</p>
      <ol className="plain">{[...before, line, ...after].map(item)}</ol>
    </div>
  )
}

function* linesOf(buffer: LogBuffer) {
  for (let nth = 0; nth < buffer.length; nth++) {
    const line = buffer.at(nth)
    if (line) yield line
  }
}

/** Reads the lines around a line. Requests have a start time only, so earlier ones are tried until there are enough lines before it. */
async function readContext(lineId: string, previous: boolean, signal: AbortSignal): Promise<Pick<ContextWindow, 'before' | 'line' | 'after'>> {
  const parsed = parseLineId(lineId)
  let context = new ContextWindow('')
  if (!parsed) return context
  for (const span of CONTEXT_SPANS_MS) {
    context = await readWindow(parsed.time, parsed.source, span, previous, signal)
    if (context.line === undefined || context.before.length >= CONTEXT_LINES) break
  }
  return context
}

async function readWindow(time: string, { cluster, namespace, pod, container }: LogSource, spanMs: number, previous: boolean, signal: AbortSignal): Promise<ContextWindow> {
  const context = new ContextWindow(time)
  const complete = new AbortController()
  const q = podsOf({ apiVersion: 'v1', resource: 'pods', namespace, name: pod }, cluster) ?? ''
  const parameters = logParameters({ q, container, previous, follow: false }, new Date(Date.parse(time) - spanMs).toISOString())
  try {
    await streamEvents(`${API}/logs?${parameters}`, AbortSignal.any([signal, complete.signal]), ({ event, data }) => {
      if (event === 'refused' || event === 'error') throw new Error((JSON.parse(data) as { message: string }).message)
      if (event === 'line' && !complete.signal.aborted && context.push(JSON.parse(data) as ContextLine)) complete.abort()
    })
  } catch (error) {
    if (!complete.signal.aborted) throw error
  } finally {
    // After an error of an event, the response is not read to its end.
    complete.abort()
  }
  return context
}
