import { useCallback, useEffect, useRef, useState } from 'react'
import { viewErrorOf, request } from '../../api/client'
import { streamEvents } from '../../api/sse'
import type { Notice, SkippedCluster } from '../../api/types'
import { API } from '../../api/searchApi'
import { timeBefore, keyOf, LogBuffer, PausedLines, type LogSource } from './logBuffer'

/** Parameters of a request for logs. */
export interface LogRequest {
  q: string
  container?: string | undefined
  include?: string | undefined
  exclude?: string | undefined
  since?: string | undefined
  /** Number of last lines of each log, if no time is given. */
  tail?: string | undefined
  previous: boolean
  follow: boolean
  /** Identifier of a line that must be included. */
  line?: string | undefined
}

/** State of a stream of logs. */
export interface LogStatus {
  state: 'connecting' | 'following' | 'ended' | 'broken'
  /** Why the stream failed or ended. */
  reason: string | undefined
  /** Sources whose logs are being read, by key. */
  sources: ReadonlyMap<string, LogSource>
  refused: { source: LogSource; message: string }[]
  notices: string[]
  skipped: SkippedCluster[]
  logs: number | undefined
}

const INITIAL_STATUS: LogStatus = { state: 'connecting', reason: undefined, sources: new Map(), refused: [], notices: [], skipped: [], logs: undefined }
const DEFAULT_TAIL = '1000'
/** Interval between renderings. */
const RENDER_INTERVAL_MS = 200

/** Query string of a request for logs. `resumeTime`: time of the last line before the stream was interrupted. */
export function logParameters({ q, container, include, exclude, since, tail, previous, follow, line }: LogRequest, resumeTime?: string): string {
  const set = new URLSearchParams({ q, maxStreams: '100' })
  if (container) set.set('container', `^${container}$`)
  if (include) set.set('include', include)
  if (exclude) set.set('exclude', exclude)
  const from = resumeTime ?? (line === undefined ? undefined : timeBefore(line))
  if (from !== undefined) set.set('sinceTime', from)
  else if (since) set.set('since', since)
  const last = tail ?? (from === undefined && !since ? DEFAULT_TAIL : undefined)
  if (last !== undefined && resumeTime === undefined) set.set('tail', last)
  if (previous) set.set('previous', 'true')
  else if (follow) set.set('follow', 'true')
  return set.toString()
}

interface Line extends LogSource {
  time?: string
  text: string
  cut?: boolean
}

interface Logs {
  buffer: LogBuffer
  status: LogStatus
  bufferVersion: number
  /** Number of lines that have arrived while the view is paused. */
  pausedLines: number
  restart: () => void
}

/** Streams logs into a buffer. An interrupted stream resumes without duplicate lines. While the view is paused, new lines are queued. */
export function useLogs(logRequest: LogRequest, isPaused: boolean): Logs {
  const paused = useRef(isPaused)
  paused.current = isPaused
  const [pausedLines, setPausedLines] = useState(0)
  const buffer = useRef(new LogBuffer())
  const [status, setStatus] = useState(INITIAL_STATUS)
  const [bufferVersion, setBufferVersion] = useState(0)
  const [restartCount, setRestartCount] = useState(0)
  const key = JSON.stringify(logRequest)

  useEffect(() => {
    const parsedRequest = JSON.parse(key) as LogRequest
    const abort = new AbortController()
    let timer: ReturnType<typeof setTimeout> | undefined
    let retryDelayMs = 500
    let changed = true
    const nextStatus: { -readonly [Field in keyof LogStatus]: LogStatus[Field] } = { ...INITIAL_STATUS }
    const sources = new Map<string, LogSource>()
    /** Time of the last line of each log. */
    const lastTimes = new Map<string, string>()
    let newest: string | undefined
    const lines = new LogBuffer()
    const queue = new PausedLines()
    buffer.current = lines
    const show = () => {
      if (!paused.current && queue.count > 0) {
        queue.moveTo(lines)
        changed = true
      }
      setPausedLines(queue.count)
      if (!changed) return
      changed = false
      setStatus({ ...nextStatus, sources: new Map(sources) })
      setBufferVersion((n) => n + 1)
    }
    const sourceOf = (line: Line): LogSource => {
      const existing = sources.get(keyOf(line))
      if (existing) return existing
      const { cluster, namespace, pod, container } = line
      const created = { cluster, namespace, pod, container }
      sources.set(keyOf(created), created)
      return created
    }
    const handleEvent = (isResumed: boolean) => (event: string, data: unknown) => {
      // Ignore events of a cancelled request.
      if (abort.signal.aborted) return
      changed = true
      const payload = data as Line & { message: string; why: string; logs: number }
      switch (event) {
        case 'line': {
          const from = sourceOf(payload)
          const log = keyOf(from)
          const before = lastTimes.get(log)
          // After reconnecting, the server can send lines again.
          if (isResumed && payload.time !== undefined && before !== undefined && payload.time <= before) return
          if (payload.time !== undefined) {
            lastTimes.set(log, payload.time)
            if (newest === undefined || payload.time > newest) newest = payload.time
          }
          const target = paused.current || queue.count > 0 ? queue : lines
          target.push({ time: payload.time, text: payload.text, truncated: payload.cut === true, source: from })
          return
        }
        case 'joined':
          sourceOf(payload)
          nextStatus.state = 'following'
          nextStatus.reason = undefined
          retryDelayMs = 500
          return
        case 'refused':
          nextStatus.refused = [...nextStatus.refused.filter(({ source: other }) => keyOf(other) !== keyOf(payload)), { source: payload, message: payload.message }].slice(-20)
          return
        case 'left':
          sources.delete(keyOf(payload))
          return
        case 'notices':
          nextStatus.notices = (data as Notice[]).map(({ message }) => message)
          return
        case 'skipped':
          nextStatus.skipped = data as SkippedCluster[]
          return
        case 'error':
          nextStatus.reason = payload.message
          return
        case 'done':
          nextStatus.logs = payload.logs
          nextStatus.reason = payload.why ?? nextStatus.reason
          return
      }
    }
    const start = (isResumed: boolean) => {
      nextStatus.state = isResumed ? nextStatus.state : 'connecting'
      const onEvent = handleEvent(isResumed)
      streamEvents(`${API}/logs?${logParameters(parsedRequest, isResumed ? newest : undefined)}`, abort.signal, ({ event, data }) => onEvent(event, JSON.parse(data))).then(
        () => handleEnd(undefined),
        (error: unknown) => handleEnd(error),
      )
    }
    const handleEnd = (error: unknown) => {
      if (abort.signal.aborted) return
      changed = true
      if (viewErrorOf(error) !== undefined) nextStatus.reason = error instanceof Error ? error.message : String(error)
      nextStatus.state = error === undefined && !parsedRequest.follow ? 'ended' : 'broken'
      // Invalid requests are not retried.
      const isInvalid = error !== undefined && 'code' in (error as object) && (error as { code: number }).code < 500
      if (parsedRequest.follow && !parsedRequest.previous && !isInvalid) timer = setTimeout(() => start(true), (retryDelayMs = Math.min(retryDelayMs * 2, 15_000)))
      show()
    }
    show()
    start(false)
    const renderTimer = setInterval(show, RENDER_INTERVAL_MS)
    return () => {
      abort.abort()
      clearTimeout(timer)
      clearInterval(renderTimer)
    }
  }, [key, restartCount])

  return { buffer: buffer.current, status, bufferVersion, pausedLines, restart: useCallback(() => setRestartCount((n) => n + 1), []) }
}

/** Downloads all matching lines as a text file, without buffering them in the page. */
export async function downloadLogs(logRequest: LogRequest, name: string): Promise<void> {
  const response = await request(`${API}/logs?${logParameters({ ...logRequest, follow: false, line: undefined, tail: logRequest.tail ?? (logRequest.since ? undefined : '-1') })}&timestamps=true`, { headers: { Accept: 'text/plain' } })
  const address = URL.createObjectURL(await response.blob())
  const link = document.createElement('a')
  link.href = address
  link.download = `${name}.log`
  link.click()
  URL.revokeObjectURL(address)
}
