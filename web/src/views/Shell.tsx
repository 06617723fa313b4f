import { Suspense, useEffect, useState, type ReactNode } from 'react'
import { Link, useLocation } from 'wouter'
import { useIsConnectionLost } from '../api/useConnection'
import { Icon } from '../icons/Icon'
import { lazyPart } from '../parts/LazyPart'
import { isTyping, useKeys } from '../parts/keys'
import { Modal } from '../parts/Modal'
import { Popover } from '../parts/Popover'
import { setPrefs, usePrefs, type Locale } from '../prefs'
import { sectionOf } from '../sections'
import { setLocale, useText } from '../text'
import { Breadcrumbs } from './Breadcrumbs'
import { overlayFor, withTypedText, type Overlay } from './overlay'
import { useSession } from './SignIn'

const Palette = lazyPart(() => import('./Palette'), (view) => view.Palette, { Frame: OverlayFrame })
const Keys = lazyPart(() => import('./Keys'), (view) => view.Keys, { Frame: OverlayFrame })

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
  const [overlay, setOverlay] = useState<Overlay>()
  const close = () => setOverlay(undefined)

  // Preloads the palette after the first paint, so that it opens without delay. If loading fails, opening the palette loads it again.
  useEffect(() => {
    const timer = setTimeout(() => void import('./Palette').catch(() => undefined), 1_000)
    return () => clearTimeout(timer)
  }, [])

  useKeys((event) => {
    const overlay = overlayFor(event, isTyping(event.target))
    const isSingleKey = !isTyping(event.target) && !event.ctrlKey && !event.metaKey && !event.altKey
    if (overlay) setOverlay(overlay)
    // On pages with a search box, the search box handles this key.
    else if (isSingleKey && event.key === '/' && path !== '/' && path !== '/search') navigate('/')
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
        <Rail isWide={prefs.rail === 'wide'} />
        <div>
          <header className="top">
            <Breadcrumbs />
            <button type="button" onClick={() => setOverlay({ dialog: 'palette', initialText: '' })}>
              {t.commands} <kbd aria-hidden="true">{/Mac/.test(navigator.userAgent) ? '⌘K' : 'Ctrl-K'}</kbd>
            </button>
            <button type="button" aria-label={t.keys} title={t.keys} onClick={() => setOverlay({ dialog: 'keys' })}>
              ?
            </button>
            <Account />
          </header>
          <main id="main" tabIndex={-1}>
            {children}
          </main>
        </div>
      </div>
      <Suspense fallback={overlay?.dialog === 'palette' && <Loading initialText={overlay.initialText} onType={(text) => setOverlay(withTypedText(overlay, text))} onClose={close} />}>
        {overlay?.dialog === 'palette' && <Palette initialText={overlay.initialText} onClose={close} onKeys={() => setOverlay({ dialog: 'keys' })} />}
        {overlay?.dialog === 'keys' && <Keys onClose={close} />}
      </Suspense>
    </>
  )
}

/** Banner while the server does not respond. Views keep their last data and continue when the connection is restored. */
function Offline() {
  const t = useText()
  return (
    <div role="status">
      {useIsConnectionLost() && <p className="offline">{t.offline}</p>}
    </div>
  )
}

/** Dialog with the message that the code of another dialog could not be loaded. */
function OverlayFrame({ onClose, children }: { onClose: () => void; children: ReactNode }) {
  const t = useText()
  return (
    <Modal label={t.commands} className="palette" onClose={onClose}>
      {children}
      <button type="button" onClick={onClose}>
        {t.close}
      </button>
    </Modal>
  )
}

/** Placeholder of the palette while its code is loaded; text that is typed into it becomes the palette's initial text. */
function Loading({ initialText, onType, onClose }: { initialText: string; onType: (text: string) => void; onClose: () => void }) {
  const t = useText()
  return (
    <Modal label={t.palette} className="palette" onClose={onClose}>
      <input type="text" aria-label={t.palette} placeholder={t.paletteHint} spellCheck={false} autoComplete="off" autoFocus value={initialText} onChange={(event) => onType(event.target.value)} />
    </Modal>
  )
}

function Rail({ isWide }: { isWide: boolean }) {
  const t = useText()
  const [path] = useLocation()
  const label = isWide ? t.railNarrow : t.railWide
  return (
    <nav className="rail" aria-label={t.mainNav}>
      <span className="brand">
        <img src="/crowsnest.svg" alt="" width="22" height="22" /> <span>Crowsnest</span>
      </span>
      {NAVIGATION.map(([section, href, name]) => (
        <Link key={section} href={href} title={isWide ? undefined : t[name]} aria-current={sectionOf(path) === section ? 'page' : undefined}>
          <Icon name={ICONS[section]} />
          <span>{t[name]}</span>
        </Link>
      ))}
      <button type="button" title={label} onClick={() => setPrefs({ rail: isWide ? 'narrow' : 'wide' })}>
        <Icon name={isWide ? 'narrow' : 'wide'} />
        <span>{label}</span>
      </button>
    </nav>
  )
}

/** Menu with the preferences of this browser and a button to sign out. */
function Account() {
  const t = useText()
  const session = useSession()
  const { theme, density } = usePrefs()
  return (
    <Popover label={session.user} className="who" title={t.account} icon={<Avatar user={session.user} />}>
      {() => (
        <div className="account">
          <Choice label={t.theme} value={theme} options={t.themes} onChoose={(chosen) => setPrefs({ theme: chosen })} />
          <Choice label={t.language} value={t.locale} options={LANGUAGES} onChoose={(chosen) => void setLocale(chosen as Locale)} />
          <Choice label={t.density} value={density} options={t.densities} onChoose={(chosen) => setPrefs({ density: chosen })} />
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

function Choice<T extends string>({ label, value, options, onChoose }: { label: string; value: string; options: Record<T, string>; onChoose: (chosen: T) => void }) {
  return (
    <label>
      {label}{' '}
      <select value={value} onChange={(event) => onChoose(event.target.value as T)}>
        {Object.entries<string>(options).map(([name, text]) => (
          <option key={name} value={name} lang={languageOf(name)}>
            {text}
          </option>
        ))}
      </select>
    </label>
  )
}

const languageOf = (name: string) => (name in LANGUAGES ? name : undefined)
