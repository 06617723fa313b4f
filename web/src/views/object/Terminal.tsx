import { FitAddon } from '@xterm/addon-fit'
import { Terminal as Screen } from '@xterm/xterm'
import '@xterm/xterm/css/xterm.css'
import { useEffect, useRef, useState } from 'react'
import { ApiError, objectPath, request, type ObjectRef } from '../../api/client'
import type { KubeObject } from '../../api/types'
import { ClusterName } from '../../parts/ClusterName'
import { clock } from '../../parts/format'
import { usePrefs } from '../../prefs'
import { useTextOf } from '../../text'
import { object as texts, type ObjectText } from '../../text/object'
import { ended, ERROR, isMissing, pack, PROTOCOLS, SHELLS, size, STDERR, STDIN, STDOUT, unpack } from './channel'
import { containers } from './facts'
import { useView } from './state'
import { strictDocument } from './styles'

/** Interval of keepalive messages while the user does not type. */
const HEARTBEAT = 25_000
const MOST_TRIES = 6

type State = { at: 'connecting' } | { at: 'open'; shell: string } | { at: 'lost'; why: string; tries: number } | { at: 'ended'; why: string }

/** A shell in a container. A lost connection is opened again as a new shell, with a note. */
export function Terminal({ refTo, object }: { refTo: ObjectRef; object: KubeObject }) {
  const t = useTextOf(texts)
  const [view, change] = useView()
  const { theme } = usePrefs()
  const names = containers(object).filter(({ init }) => !init).map(({ name }) => name)
  const usual = object.metadata.annotations?.['kubectl.kubernetes.io/default-container']
  const container = view.container ?? (usual && names.includes(usual) ? usual : names[0])
  const shell = view.shell ?? 'auto'
  const [state, setState] = useState<State>({ at: 'connecting' })
  const [begun, setBegun] = useState(0)
  const place = useRef<HTMLDivElement>(null)
  const screen = useRef<Screen>(undefined)
  const toolbar = useRef<HTMLParagraphElement>(null)
  const path = `${objectPath(refTo)}/exec`

  useEffect(() => {
    const host = place.current
    if (!host) return
    const strict = strictDocument(document)
    const shown = new Screen({
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
    shown.loadAddon(fit)
    shown.open(host)
    shown.textarea?.setAttribute('aria-label', t.terminal)
    fit.fit()
    screen.current = shown
    const sizes = new ResizeObserver(() => fit.fit())
    sizes.observe(host)
    // All keys are sent to the shell, except for the one that leaves the terminal.
    shown.attachCustomKeyEventHandler((event) => {
      if (event.key !== 'F6') return true
      if (event.type === 'keydown') toolbar.current?.querySelector<HTMLElement>('select, button')?.focus()
      event.preventDefault()
      return false
    })
    const keep = (event: KeyboardEvent) => event.stopPropagation()
    host.addEventListener('keydown', keep)
    return () => {
      host.removeEventListener('keydown', keep)
      sizes.disconnect()
      shown.dispose()
      strict.close()
      screen.current = undefined
    }
  }, [t])

  useEffect(() => {
    if (screen.current && place.current) screen.current.options.theme = colours(place.current)
  }, [theme])

  useEffect(() => {
    const shown = screen.current
    if (!shown || container === undefined) return
    shown.reset()
    return connect(shown, path, container, shell, t, setState)
  }, [path, container, shell, begun, t])

  return (
    <section className="terminal" aria-label={t.terminal}>
      <p className="tools" ref={toolbar}>
        <ClusterName name={refTo.cluster} />
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
        <span role="status" className={state.at === 'lost' ? 'bad' : 'notice'}>
          {state.at === 'connecting' ? t.connecting : state.at === 'open' ? t.connected(state.shell) : state.at === 'lost' ? t.lost(state.why) : t.shellEnded(state.why)}
        </span>
        {(state.at === 'ended' || state.at === 'lost') && (
          <button type="button" onClick={() => setBegun((n) => n + 1)}>
            {t.connectAgain}
          </button>
        )}
      </p>
      <div className="screen" ref={place} />
      <p className="notice">
        {t.recorded} {t.leaveTerminal}
      </p>
    </section>
  )
}

/** The page's colours, as numbers. */
function colours(host: HTMLElement) {
  const probe = document.createElement('i')
  host.append(probe)
  const of = (name: string) => {
    probe.style.color = `var(--${name})`
    return getComputedStyle(probe).color
  }
  const theme = { background: of('raised'), foreground: of('text'), cursor: of('text'), cursorAccent: of('raised'), selectionBackground: of('chosen') }
  probe.remove()
  return theme
}

/** Connects and reconnects. Returns a function that ends this. */
function connect(screen: Screen, path: string, container: string, wanted: string, t: ObjectText, tell: (state: State) => void): () => void {
  const candidates = wanted === 'auto' ? SHELLS : [wanted]
  let nth = 0
  let tries = 0
  let over = false
  let socket: WebSocket | undefined
  let retry: ReturnType<typeof setTimeout> | undefined
  const say = (text: string) => screen.write(`\r\n\x1b[7m ${text} \x1b[0m\r\n`)

  const begin = () => {
    const shell = candidates[nth] ?? 'sh'
    const query = new URLSearchParams({ container, command: shell, stdin: 'true', stdout: 'true', tty: 'true' })
    const address = new URL(`${path}?${query.toString()}`, window.location.href)
    address.protocol = address.protocol.replace('http', 'ws')
    const own = new WebSocket(address, PROTOCOLS)
    own.binaryType = 'arraybuffer'
    socket = own
    let opened = false
    let status = ''
    let heard = false
    const decoder = new TextDecoder()
    own.onopen = () => {
      opened = true
      if (tries > 0) say(t.newShell(clock(new Date())))
      tell({ at: 'open', shell })
      own.send(size(screen.cols, screen.rows))
    }
    own.onmessage = ({ data }) => {
      const message = unpack(data as ArrayBuffer)
      if (!message) return
      if (message.channel === STDOUT || message.channel === STDERR) {
        if (message.data.length === 0) return
        if (!heard) {
          heard = true
          tries = 0
          screen.focus()
        }
        screen.write(message.data)
      } else if (message.channel === ERROR) status += decoder.decode(message.data)
    }
    own.onclose = ({ reason }) => {
      if (over || socket !== own) return
      if (status !== '') {
        const how = ended(status)
        if (!heard && isMissing(how) && nth + 1 < candidates.length) {
          nth += 1
          return begin()
        }
        const why = how.code === undefined ? how.message : t.exited(how.code)
        say(t.shellEnded(why))
        return tell({ at: 'ended', why: isMissing(how) && !heard ? `${why} ${t.noShell}` : why })
      }
      if (opened) return again(reason || t.brokenOff)
      // Browsers do not report why a WebSocket failed; a plain request to the address does.
      request(`${path}?${query.toString()}`).then(
        () => again(t.notOpened),
        (error: unknown) => {
          if (over) return
          const refused = error instanceof ApiError && [401, 403, 404, 409].includes(error.code)
          const why = error instanceof ApiError && error.code !== 400 ? error.message : t.notOpened
          if (refused) tell({ at: 'ended', why })
          else again(why)
        },
      )
    }
  }
  const again = (why: string) => {
    if (over) return
    tries += 1
    if (tries === 1) say(t.lost(why))
    if (tries > MOST_TRIES) return tell({ at: 'ended', why })
    tell({ at: 'lost', why, tries })
    retry = setTimeout(begin, Math.min(1_000 * 2 ** (tries - 1), 15_000))
  }
  const send = (message: Uint8Array<ArrayBuffer>) => {
    if (socket?.readyState === WebSocket.OPEN) socket.send(message)
  }
  const typed = screen.onData((text) => send(pack(STDIN, new TextEncoder().encode(text))))
  const binary = screen.onBinary((text) => send(pack(STDIN, Uint8Array.from(text, (c) => c.charCodeAt(0)))))
  const sized = screen.onResize(({ cols, rows }) => send(size(cols, rows)))
  const beat = setInterval(() => send(size(screen.cols, screen.rows)), HEARTBEAT)
  tell({ at: 'connecting' })
  begin()
  return () => {
    over = true
    clearTimeout(retry)
    clearInterval(beat)
    typed.dispose()
    binary.dispose()
    sized.dispose()
    socket?.close()
  }
}
