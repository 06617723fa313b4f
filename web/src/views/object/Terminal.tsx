import { FitAddon } from '@xterm/addon-fit'
import { Terminal as Screen } from '@xterm/xterm'
import '@xterm/xterm/css/xterm.css'
import { useEffect, useRef, useState } from 'react'
import { ApiError, objectPath, request, type ObjectRef } from '../../api/client'
import type { KubeObject } from '../../api/types'
import { ClusterName } from '../../parts/ClusterName'
import { formatTime } from '../../parts/format'
import { usePrefs } from '../../prefs'
import { useTextOf } from '../../text'
import { objectText as texts, type ObjectText } from '../../text/object'
import { parseExitStatus, ERROR, isShellMissing, encodeMessage, PROTOCOLS, SHELLS, resizeMessage, STDERR, STDIN, STDOUT, decodeMessage } from './channel'
import { containers } from './facts'
import { useViewParameters } from './state'
import { strictDocument } from './strictDocument'

/** Interval of keepalive messages. */
const KEEPALIVE_INTERVAL_MS = 25_000
const MAX_RETRIES = 6

type State = { status: 'connecting' } | { status: 'open'; shell: string } | { status: 'lost'; why: string; tries: number } | { status: 'ended'; why: string }

interface TerminalProps {
  objectRef: ObjectRef
  object: KubeObject
}

/** Terminal tab: a shell in a container, or two side by side. */
export function Terminal(props: TerminalProps) {
  const t = useTextOf(texts)
  const [view, change] = useViewParameters()
  const isSplit = view.split === 'true'
  return (
    <>
      <p className="tools">
        <label className="option">
          <input type="checkbox" checked={isSplit} onChange={(event) => change({ split: event.target.checked ? 'true' : undefined })} /> {t.split}
        </label>
      </p>
      <div className="terminals">
        <Shell {...props} label={t.terminal} />
        {isSplit && <Shell {...props} label={t.split} />}
      </div>
    </>
  )
}

/** A shell in a container. After a lost connection a new shell is opened, with a note in the terminal. */
function Shell({ objectRef, object, label }: TerminalProps & { label: string }) {
  const t = useTextOf(texts)
  const [view, change] = useViewParameters()
  const { theme } = usePrefs()
  const names = containers(object).filter(({ init }) => !init).map(({ name }) => name)
  const defaultContainer = object.metadata.annotations?.['kubectl.kubernetes.io/default-container']
  const container = view.container ?? (defaultContainer && names.includes(defaultContainer) ? defaultContainer : names[0])
  const shell = view.shell ?? 'auto'
  const [state, setState] = useState<State>({ status: 'connecting' })
  const [sessionCount, setSessionCount] = useState(0)
  const hostRef = useRef<HTMLDivElement>(null)
  const screen = useRef<Screen>(undefined)
  const toolbar = useRef<HTMLParagraphElement>(null)
  const path = `${objectPath(objectRef)}/exec`

  useEffect(() => {
    const host = hostRef.current
    if (!host) return
    const strict = strictDocument(document)
    const terminal = new Screen({
      documentOverride: strict.document,
      fontFamily: 'ui-monospace, monospace',
      fontSize: 13,
      cursorBlink: false,
      minimumContrastRatio: 4.5,
      scrollback: 5_000,
      screenReaderMode: true,
      theme: colours(host),
    })
    const fit = new FitAddon()
    terminal.loadAddon(fit)
    terminal.open(host)
    terminal.textarea?.setAttribute('aria-label', label)
    fit.fit()
    screen.current = terminal
    const sizes = new ResizeObserver(() => fit.fit())
    sizes.observe(host)
    // All keys are sent to the shell, except for F6, which leaves the terminal.
    terminal.attachCustomKeyEventHandler((event) => {
      if (event.key !== 'F6') return true
      if (event.type === 'keydown') toolbar.current?.querySelector<HTMLElement>('select, button')?.focus()
      event.preventDefault()
      return false
    })
    const stopKeys = (event: KeyboardEvent) => event.stopPropagation()
    host.addEventListener('keydown', stopKeys)
    return () => {
      host.removeEventListener('keydown', stopKeys)
      sizes.disconnect()
      terminal.dispose()
      strict.close()
      screen.current = undefined
    }
  }, [t, label])

  useEffect(() => {
    if (screen.current && hostRef.current) screen.current.options.theme = colours(hostRef.current)
  }, [theme])

  useEffect(() => {
    const terminal = screen.current
    if (!terminal || container === undefined) return
    terminal.reset()
    return connect(terminal, path, container, shell, t, setState)
  }, [path, container, shell, sessionCount, t])

  return (
    <section className="terminal" aria-label={label}>
      <p className="tools" ref={toolbar}>
        <ClusterName name={objectRef.cluster} />
        <label>
          {t.container}{' '}
          <select value={container} onChange={(event) => change({ container: event.target.value })}>
            {names.map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        </label>
        <label>
          {t.shell}{' '}
          <select value={shell} onChange={(event) => change({ shell: event.target.value === 'auto' ? undefined : event.target.value })}>
            <option value="auto">{t.anyShell}</option>
            {[...SHELLS, ...(shell === 'auto' || SHELLS.includes(shell) ? [] : [shell])].map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        </label>
        <span role="status" className={state.status === 'lost' ? 'bad' : 'notice'}>
          {state.status === 'connecting' ? t.connecting : state.status === 'open' ? t.connected(state.shell) : state.status === 'lost' ? t.lost(state.why) : t.shellEnded(state.why)}
        </span>
        {(state.status === 'ended' || state.status === 'lost') && (
          <button type="button" onClick={() => setSessionCount((n) => n + 1)}>
            {t.connectAgain}
          </button>
        )}
      </p>
      <div className="screen" ref={hostRef} />
      <p className="notice">
        {t.recorded} {t.leaveTerminal}
      </p>
    </section>
  )
}

/** The page's colours as computed values, because xterm.js does not resolve CSS variables. */
function colours(host: HTMLElement) {
  const probe = document.createElement('i')
  host.append(probe)
  const colourOf = (name: string) => {
    probe.style.color = `var(--${name})`
    return getComputedStyle(probe).color
  }
  const theme = { background: colourOf('raised'), foreground: colourOf('text'), cursor: colourOf('text'), cursorAccent: colourOf('raised'), selectionBackground: colourOf('chosen') }
  probe.remove()
  return theme
}

/** Opens a shell, and reopens it after a lost connection. Returns a function that closes it. */
function connect(screen: Screen, path: string, container: string, requestedShell: string, t: ObjectText, onState: (state: State) => void): () => void {
  const candidates = requestedShell === 'auto' ? SHELLS : [requestedShell]
  let nth = 0
  let tries = 0
  let isClosed = false
  let socket: WebSocket | undefined
  let retry: ReturnType<typeof setTimeout> | undefined
  const printNote = (text: string) => screen.write(`\r\n\x1b[7m ${text} \x1b[0m\r\n`)

  const open = () => {
    const shell = candidates[nth] ?? 'sh'
    const query = new URLSearchParams({ container, command: shell, stdin: 'true', stdout: 'true', tty: 'true' })
    const address = new URL(`${path}?${query.toString()}`, window.location.href)
    address.protocol = address.protocol.replace('http', 'ws')
    const webSocket = new WebSocket(address, PROTOCOLS)
    webSocket.binaryType = 'arraybuffer'
    socket = webSocket
    let isOpened = false
    let status = ''
    let hasOutput = false
    const decoder = new TextDecoder()
    webSocket.onopen = () => {
      isOpened = true
      if (tries > 0) printNote(t.newShell(formatTime(new Date())))
      onState({ status: 'open', shell })
      webSocket.send(resizeMessage(screen.cols, screen.rows))
    }
    webSocket.onmessage = ({ data }) => {
      const message = decodeMessage(data as ArrayBuffer)
      if (!message) return
      if (message.channel === STDOUT || message.channel === STDERR) {
        if (message.data.length === 0) return
        if (!hasOutput) {
          hasOutput = true
          tries = 0
          screen.focus()
        }
        screen.write(message.data)
      } else if (message.channel === ERROR) status += decoder.decode(message.data)
    }
    webSocket.onclose = ({ reason }) => {
      if (isClosed || socket !== webSocket) return
      if (status !== '') {
        const exit = parseExitStatus(status)
        if (!hasOutput && isShellMissing(exit) && nth + 1 < candidates.length) {
          nth += 1
          return open()
        }
        const why = exit.code === undefined ? exit.message : t.exited(exit.code)
        printNote(t.shellEnded(why))
        return onState({ status: 'ended', why: isShellMissing(exit) && !hasOutput ? `${why} ${t.noShell}` : why })
      }
      if (isOpened) return reconnect(reason || t.interrupted)
      // Browsers do not report why a WebSocket failed; a plain request to the address does.
      request(`${path}?${query.toString()}`).then(
        () => reconnect(t.notOpened),
        (error: unknown) => {
          if (isClosed) return
          const refused = error instanceof ApiError && [401, 403, 404, 409].includes(error.code)
          const why = error instanceof ApiError && error.code !== 400 ? error.message : t.notOpened
          if (refused) onState({ status: 'ended', why })
          else reconnect(why)
        },
      )
    }
  }
  const reconnect = (why: string) => {
    if (isClosed) return
    tries += 1
    if (tries === 1) printNote(t.lost(why))
    if (tries > MAX_RETRIES) return onState({ status: 'ended', why })
    onState({ status: 'lost', why, tries })
    retry = setTimeout(open, Math.min(1_000 * 2 ** (tries - 1), 15_000))
  }
  const send = (message: Uint8Array<ArrayBuffer>) => {
    if (socket?.readyState === WebSocket.OPEN) socket.send(message)
  }
  const input = screen.onData((text) => send(encodeMessage(STDIN, new TextEncoder().encode(text))))
  const binary = screen.onBinary((text) => send(encodeMessage(STDIN, Uint8Array.from(text, (c) => c.charCodeAt(0)))))
  const resize = screen.onResize(({ cols, rows }) => send(resizeMessage(cols, rows)))
  const keepalive = setInterval(() => send(resizeMessage(screen.cols, screen.rows)), KEEPALIVE_INTERVAL_MS)
  onState({ status: 'connecting' })
  open()
  return () => {
    isClosed = true
    clearTimeout(retry)
    clearInterval(keepalive)
    input.dispose()
    binary.dispose()
    resize.dispose()
    socket?.close()
  }
}
