// The language of the UI. English is part of the main bundle; other languages are loaded from the same origin when they are selected.
import { useSyncExternalStore } from 'react'
import { currentPrefs, setPrefs, type Locale } from '../prefs'
import { en, type Text } from './en'

export type { Text } from './en'

let text: Text = en
const listeners = new Set<() => void>()

const LOADERS: Record<Locale, () => Promise<Text>> = {
  en: () => Promise.resolve(en),
  'zh-CN': () => import('./zh-CN').then((chunk) => chunk.zh),
}

/** The chosen language, otherwise the first of the preferred ones that is supported, otherwise English. */
export function selectLocale(chosen: Locale | undefined, preferred: readonly string[]): Locale {
  if (chosen && chosen in LOADERS) return chosen
  const supported = preferred.map((tag) => (/^zh\b/i.test(tag) ? 'zh-CN' : /^en\b/i.test(tag) ? 'en' : undefined))
  return supported.find((locale) => locale !== undefined) ?? 'en'
}

/** Switches the UI to the selected language; on a load error it stays as it is. */
export async function loadText(): Promise<void> {
  const locale = selectLocale(currentPrefs().locale, navigator.languages)
  const loaded = await LOADERS[locale]().catch(() => text)
  text = loaded
  document.documentElement.lang = text.locale
  listeners.forEach((listener) => listener())
}

/** Stores the chosen language and switches the UI to it. */
export function setLocale(locale: Locale): Promise<void> {
  setPrefs({ locale })
  return loadText()
}

export function useText(): Text {
  return useSyncExternalStore(
    (listener) => {
      listeners.add(listener)
      return () => listeners.delete(listener)
    },
    () => text,
  )
}

/** Texts of a view that is loaded when it is opened: both languages are loaded with the view. */
export function useTextOf<T>(texts: Record<Locale, T>): T {
  const locale = selectLocale(useText().locale as Locale, [])
  return texts[locale]
}
