import { lazy, Suspense, useEffect, useState, type ReactNode } from 'react'
import { Link, useLocation } from 'wouter'
import { useLost } from '../api/useConnection'
import { Icon } from '../icons/Icon'
import { isTyping, useKeys } from '../parts/keys'
import { Modal } from '../parts/Modal'
import { Popover } from '../parts/Popover'
import { setPrefs, usePrefs, type Locale } from '../prefs'
import { partOf } from '../paths'
import { choose, useText } from '../text'
import { Breadcrumbs } from './Breadcrumbs'
import { overlayFor, withTypedText, type Overlay } from './overlay'
import { useSession } from './SignIn'

const Palette = lazy(() => import('./Palette').then((view) => ({ default: view.Palette })))
const Keys = lazy(() => import('./Keys').then((view) => ({ default: view.Keys })))

const NAVIGATION = [
  ['home', '/', 'home'],
  ['search', '/search', 'search'],
  ['fleet', '/fleet', 'fleet'],
  ['propagation', '/steer', 'propagation'],
  ['saved', '/saved', 'savedSearches'],
] as const
const ICONS = { home: 'home', search: 'search', fleet: 'fleet', propagation: 'propagation', saved: 'saved' } as const

/** The frame of every view: navigation and shortcut keys. */
export function Shell({ children }: { children: ReactNode }) {
  const t = useText()
  const prefs = usePrefs()
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
      <div className="frame" data-rail={prefs.rail}>
        <Rail wide={prefs.rail === 'wide'} />
        <div>
          <header className="top">
            <Breadcrumbs />
            <button type="button" onClick={() => setOpen({ dialog: 'palette', initialText: '' })}>
              {t.commands} <kbd aria-hidden="true">{/Mac/.test(navigator.userAgent) ? '⌘K' : 'Ctrl-K'}</kbd>
            </button>
            <button type="button" aria-label={t.keys} title={t.keys} onClick={() => setOpen({ dialog: 'keys' })}>
              ?
            </button>
            <Account />
          </header>
          <main id="main" tabIndex={-1}>
            {children}
          </main>
        </div>
      </div>
      <Suspense fallback={open?.dialog === 'palette' && <Loading begin={open.initialText} onType={(text) => setOpen(withTypedText(open, text))} onClose={close} />}>
        {open?.dialog === 'palette' && <Palette begin={open.initialText} onClose={close} onKeys={() => setOpen({ dialog: 'keys' })} />}
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

function Rail({ wide }: { wide: boolean }) {
  const t = useText()
  const [path] = useLocation()
  const label = wide ? t.railNarrow : t.railWide
  return (
    <nav className="rail" aria-label={t.mainNav}>
      <span className="brand">
        <img src="/crowsnest.svg" alt="" width="22" height="22" /> <span>Crowsnest</span>
      </span>
      {NAVIGATION.map(([part, href, name]) => (
        <Link key={part} href={href} title={wide ? undefined : t[name]} aria-current={partOf(path) === part ? 'page' : undefined}>
          <Icon name={ICONS[part]} />
          <span>{t[name]}</span>
        </Link>
      ))}
      <button type="button" title={label} onClick={() => setPrefs({ rail: wide ? 'narrow' : 'wide' })}>
        <Icon name={wide ? 'narrow' : 'wide'} />
        <span>{label}</span>
      </button>
    </nav>
  )
}

/** The user, preferences of this browser, and signing out. */
function Account() {
  const t = useText()
  const session = useSession()
  const { theme, density } = usePrefs()
  return (
    <Popover label={session.user} className="who" title={t.account} lead={<Avatar user={session.user} />}>
      {() => (
        <div className="account">
          <Choice label={t.theme} value={theme} of={t.themes} onChoose={(chosen) => setPrefs({ theme: chosen })} />
          <Choice label={t.language} value={t.locale} of={LANGUAGES} onChoose={(chosen) => void choose(chosen as Locale)} />
          <Choice label={t.density} value={density} of={t.densities} onChoose={(chosen) => setPrefs({ density: chosen })} />
          <button type="button" onClick={session.signOut}>
            {t.signOut}
          </button>
        </div>
      )}
    </Popover>
  )
}

/** Languages by their own names. */
const LANGUAGES: Record<Locale, string> = { en: 'English', 'zh-CN': '简体中文' }

function Avatar({ user }: { user: string }) {
  return (
    <span className="avatar" aria-hidden="true">
      {user.replace(/^.*:/, '').slice(0, 1).toUpperCase()}
    </span>
  )
}

function Choice<T extends string>({ label, value, of, onChoose }: { label: string; value: string; of: Record<T, string>; onChoose: (chosen: T) => void }) {
  return (
    <label>
      {label}{' '}
      <select value={value} onChange={(event) => onChoose(event.target.value as T)}>
        {Object.entries<string>(of).map(([name, text]) => (
          <option key={name} value={name} lang={langOf(name)}>
            {text}
          </option>
        ))}
      </select>
    </label>
  )
}

const langOf = (name: string) => (name in LANGUAGES ? name : undefined)
