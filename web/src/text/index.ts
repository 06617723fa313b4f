// The language of the UI: English is built in, another one is loaded when it is chosen, from where the page is.
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

/** What is chosen, else what the browser asks for first of what there is. */
export function pick(chosen: Locale | undefined, wanted: readonly string[]): Locale {
  if (chosen && chosen in LOADERS) return chosen
  const known = wanted.map((tag) => (/^zh\b/i.test(tag) ? 'zh-CN' : /^en\b/i.test(tag) ? 'en' : undefined))
  return known.find((locale) => locale !== undefined) ?? 'en'
}

/** Shows the UI in the language that is chosen; it stays as it is when that one cannot be loaded. */
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

/** The texts of a view that is loaded when it is opened: both languages come with the view, and none with the first paint. */
export function useTextOf<T>(texts: Record<Locale, T>): T {
  const locale = pick(useText().locale as Locale, [])
  return texts[locale]
}
