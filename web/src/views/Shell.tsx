import { lazy, Suspense, useEffect, useState, type ReactNode } from 'react'
import { Link, useLocation } from 'wouter'
import { useLost } from '../api/useConnection'
import { isTyping, useKeys } from '../parts/keys'
import { Modal } from '../parts/Modal'
import { setPrefs, usePrefs, type Locale, type Theme } from '../prefs'
import { partOf } from '../paths'
import { choose, useText } from '../text'
import { overlayFor, typedAhead, type Overlay } from './overlay'
import { useSession } from './SignIn'

const Palette = lazy(() => import('./Palette').then((view) => ({ default: view.Palette })))
const Keys = lazy(() => import('./Keys').then((view) => ({ default: view.Keys })))

const WAYS = [
  ['search', '/', 'search'],
  ['fleet', '/fleet', 'fleet'],
  ['steering', '/steer', 'steering'],
  ['saved', '/saved', 'savedSearches'],
] as const

/** The frame of every view: navigation and shortcut keys. */
export function Shell({ children }: { children: ReactNode }) {
  const t = useText()
  const session = useSession()
  const [path, navigate] = useLocation()
  const [open, setOpen] = useState<Overlay>()
  const close = () => setOpen(undefined)

  // Loaded after the first paint, so that the palette opens at once. If loading fails, it is repeated on opening.
  useEffect(() => {
    const timer = setTimeout(() => void import('./Palette').catch(() => undefined), 1_000)
    return () => clearTimeout(timer)
  }, [])

  useKeys((event) => {
    const overlay = overlayFor(event, isTyping(event.target))
    const free = !isTyping(event.target) && !event.ctrlKey && !event.metaKey && !event.altKey
    if (overlay) setOpen(overlay)
    // The search box handles it where there is one.
    else if (free && event.key === '/' && path !== '/' && path !== '/search') navigate('/')
    else return
    event.preventDefault()
  })

  return (
    <>
      <a className="skip" href="#main">
        {t.skip}
      </a>
      <Offline />
      <header className="top">
        <Link href="/" className="brand">
          <img src="/crowsnest.svg" alt="" width="22" height="22" /> Crowsnest
        </Link>
        <nav aria-label={t.mainNav}>
          {WAYS.map(([part, href, name]) => (
            <Link key={part} href={href} aria-current={partOf(path) === part ? 'page' : undefined}>
              {t[name]}
            </Link>
          ))}
        </nav>
        <button type="button" onClick={() => setOpen({ dialog: 'palette', begin: '' })}>
          {t.commands} <kbd aria-hidden="true">{/Mac/.test(navigator.userAgent) ? '⌘K' : 'Ctrl-K'}</kbd>
        </button>
        <button type="button" aria-label={t.keys} title={t.keys} onClick={() => setOpen({ dialog: 'keys' })}>
          ?
        </button>
        <Choices />
        <span className="who">{session.user}</span>
        <button type="button" onClick={session.signOut}>
          {t.signOut}
        </button>
      </header>
      <main id="main" tabIndex={-1}>
        {children}
      </main>
      <Suspense fallback={open?.dialog === 'palette' && <Loading begin={open.begin} onType={(text) => setOpen(typedAhead(open, text))} onClose={close} />}>
        {open?.dialog === 'palette' && <Palette begin={open.begin} onClose={close} onKeys={() => setOpen({ dialog: 'keys' })} />}
        {open?.dialog === 'keys' && <Keys onClose={close} />}
      </Suspense>
    </>
  )
}

/** Shown while the server does not respond; views keep what they know and continue by themselves. */
function Offline() {
  const t = useText()
  return (
    <div role="status">
      {useLost() && <p className="offline">{t.offline}</p>}
    </div>
  )
}

/** The palette while its code is loaded: it has the focus, and keeps what is typed. */
function Loading({ begin, onType, onClose }: { begin: string; onType: (text: string) => void; onClose: () => void }) {
  const t = useText()
  return (
    <Modal label={t.palette} className="palette" onClose={onClose}>
      <input type="text" aria-label={t.palette} placeholder={t.paletteHint} spellCheck={false} autoComplete="off" autoFocus value={begin} onChange={(event) => onType(event.target.value)} />
    </Modal>
  )
}

function Choices() {
  const t = useText()
  const { theme } = usePrefs()
  return (
    <>
      <select aria-label={t.theme} title={t.theme} value={theme} onChange={(event) => setPrefs({ theme: event.target.value as Theme })}>
        {Object.entries(t.themes).map(([name, label]) => (
          <option key={name} value={name}>
            {label}
          </option>
        ))}
      </select>
      <select aria-label={t.language} title={t.language} value={t.locale} onChange={(event) => void choose(event.target.value as Locale)}>
        <option value="en" lang="en">
          English
        </option>
        <option value="zh-CN" lang="zh-CN">
          简体中文
        </option>
      </select>
    </>
  )
}
