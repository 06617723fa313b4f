import { useCallback, useEffect, useRef, useState } from 'react'
import { reported, request } from '../../api/client'
import { streamEvents } from '../../api/sse'
import type { Notice, Skipped } from '../../api/types'
import { API } from '../../api/useSearch'
import { timeBefore, keyOf, LogBuffer, type LogSource } from './logBuffer'

/** Parameters of the logs. */
export interface Wish {
  q: string
  container?: string | undefined
  include?: string | undefined
  exclude?: string | undefined
  since?: string | undefined
  /** Last lines of each log, if no time is given. */
  tail?: string | undefined
  previous: boolean
  follow: boolean
  /** A line that must be included. */
  line?: string | undefined
}

/** State of the logs. */
export interface Told {
  state: 'connecting' | 'following' | 'ended' | 'broken'
  /** Why the stream failed or ended. */
  why: string | undefined
  /** Logs being read, by key. */
  sources: ReadonlyMap<string, LogSource>
  refused: { source: LogSource; message: string }[]
  notices: string[]
  skipped: Skipped[]
  logs: number | undefined
}

const NOTHING: Told = { state: 'connecting', why: undefined, sources: new Map(), refused: [], notices: [], skipped: [], logs: undefined }
const TAIL = '1000'
/** Minimum interval between renderings. */
const SHOW_EVERY = 200

export function parameters({ q, container, include, exclude, since, tail, previous, follow, line }: Wish, again?: string): string {
  const set = new URLSearchParams({ q, maxStreams: '100' })
  if (container) set.set('container', `^${container}$`)
  if (include) set.set('include', include)
  if (exclude) set.set('exclude', exclude)
  const from = again ?? (line === undefined ? undefined : timeBefore(line))
  if (from !== undefined) set.set('sinceTime', from)
  else if (since) set.set('since', since)
  const last = tail ?? (from === undefined && !since ? TAIL : undefined)
  if (last !== undefined && again === undefined) set.set('tail', last)
  if (previous) set.set('previous', 'true')
  else if (follow) set.set('follow', 'true')
  return set.toString()
}

interface Line extends LogSource {
  time?: string
  text: string
  cut?: boolean
}

/** Streams logs into a buffer. An interrupted stream resumes without duplicate lines. */
export function useLogs(wish: Wish): { buffer: LogBuffer; told: Told; drawn: number; again: () => void } {
  const buffer = useRef(new LogBuffer())
  const [told, setTold] = useState(NOTHING)
  const [drawn, setDrawn] = useState(0)
  const [asked, setAsked] = useState(0)
  const key = JSON.stringify(wish)

  useEffect(() => {
    const wanted = JSON.parse(key) as Wish
    const abort = new AbortController()
    let timer: ReturnType<typeof setTimeout> | undefined
    let pause = 500
    let changed = true
    const now: { -readonly [Field in keyof Told]: Told[Field] } = { ...NOTHING }
    const sources = new Map<string, LogSource>()
    /** The last time of each log. */
    const last = new Map<string, string>()
    let newest: string | undefined
    const own = new LogBuffer()
    buffer.current = own
    const show = () => {
      if (!changed) return
      changed = false
      setTold({ ...now, sources: new Map(sources) })
      setDrawn((n) => n + 1)
    }
    const source = (of: Line): LogSource => {
      const known = sources.get(keyOf(of))
      if (known) return known
      const { cluster, namespace, pod, container } = of
      const made = { cluster, namespace, pod, container }
      sources.set(keyOf(made), made)
      return made
    }
    const heard = (again: boolean) => (event: string, data: unknown) => {
      // Ignore events of a cancelled request.
      if (abort.signal.aborted) return
      changed = true
      const of = data as Line & { message: string; why: string; logs: number }
      switch (event) {
        case 'line': {
          const from = source(of)
          const log = keyOf(from)
          const before = last.get(log)
          // A duplicate after reconnecting.
          if (again && of.time !== undefined && before !== undefined && of.time <= before) return
          if (of.time !== undefined) {
            last.set(log, of.time)
            if (newest === undefined || of.time > newest) newest = of.time
          }
          own.push({ time: of.time, text: of.text, truncated: of.cut === true, source: from })
          return
        }
        case 'joined':
          source(of)
          now.state = 'following'
          now.why = undefined
          pause = 500
          return
        case 'refused':
          now.refused = [...now.refused.filter(({ source: other }) => keyOf(other) !== keyOf(of)), { source: of, message: of.message }].slice(-20)
          return
        case 'left':
          sources.delete(keyOf(of))
          return
        case 'notices':
          now.notices = (data as Notice[]).map(({ message }) => message)
          return
        case 'skipped':
          now.skipped = data as Skipped[]
          return
        case 'error':
          now.why = of.message
          return
        case 'done':
          now.logs = of.logs
          now.why = of.why ?? now.why
          return
      }
    }
    const begin = (again: boolean) => {
      now.state = again ? now.state : 'connecting'
      const on = heard(again)
      streamEvents(`${API}/logs?${parameters(wanted, again ? newest : undefined)}`, abort.signal, ({ event, data }) => on(event, JSON.parse(data))).then(
        () => ended(undefined),
        (error: unknown) => ended(error),
      )
    }
    const ended = (error: unknown) => {
      if (abort.signal.aborted) return
      changed = true
      if (reported(error) !== undefined) now.why = error instanceof Error ? error.message : String(error)
      now.state = error === undefined && !wanted.follow ? 'ended' : 'broken'
      // Invalid requests are not retried.
      const wrong = error !== undefined && 'code' in (error as object) && (error as { code: number }).code < 500
      if (wanted.follow && !wanted.previous && !wrong) timer = setTimeout(() => begin(true), (pause = Math.min(pause * 2, 15_000)))
      show()
    }
    show()
    begin(false)
    const shown = setInterval(show, SHOW_EVERY)
    return () => {
      abort.abort()
      clearTimeout(timer)
      clearInterval(shown)
    }
  }, [key, asked])

  return { buffer: buffer.current, told, drawn, again: useCallback(() => setAsked((n) => n + 1), []) }
}

/** Downloads all matching lines as a text file, without buffering them in the page. */
export async function download(wish: Wish, name: string): Promise<void> {
  const response = await request(`${API}/logs?${parameters({ ...wish, follow: false, line: undefined, tail: wish.tail ?? (wish.since ? undefined : '-1') })}&timestamps=true`, { headers: { Accept: 'text/plain' } })
  const address = URL.createObjectURL(await response.blob())
  const link = document.createElement('a')
  link.href = address
  link.download = `${name}.log`
  link.click()
  URL.revokeObjectURL(address)
}
