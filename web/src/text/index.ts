// The language of the UI: English is part of the build, another one is loaded when it is selected, from the same origin.
import { useSyncExternalStore } from 'react'
import { currentPrefs, setPrefs, type Locale } from '../prefs'
import { en, type Text } from './en'

export type { Text } from './en'

let text: Text = en
const readers = new Set<() => void>()

const LOADERS: Record<Locale, () => Promise<Text>> = {
  en: () => Promise.resolve(en),
  'zh-CN': () => import('./zh-CN').then((chunk) => chunk.zh),
}

/** The selected language, otherwise the browser's first supported one. */
export function pick(chosen: Locale | undefined, wanted: readonly string[]): Locale {
  if (chosen && chosen in LOADERS) return chosen
  const known = wanted.map((tag) => (/^zh\b/i.test(tag) ? 'zh-CN' : /^en\b/i.test(tag) ? 'en' : undefined))
  return known.find((locale) => locale !== undefined) ?? 'en'
}

/** Switches the UI to the selected language; on a load error it stays as it is. */
export async function loadText(): Promise<void> {
  const locale = pick(currentPrefs().locale, navigator.languages)
  const loaded = await LOADERS[locale]().catch(() => text)
  text = loaded
  document.documentElement.lang = text.locale
  readers.forEach((reader) => reader())
}

export function choose(locale: Locale): Promise<void> {
  setPrefs({ locale })
  return loadText()
}

export function useText(): Text {
  return useSyncExternalStore(
    (reader) => {
      readers.add(reader)
      return () => readers.delete(reader)
    },
    () => text,
  )
}

/** Texts of a view that is loaded when it is opened: both languages are loaded with the view. */
export function useTextOf<T>(texts: Record<Locale, T>): T {
  const locale = pick(useText().locale as Locale, [])
  return texts[locale]
}
