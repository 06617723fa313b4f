import { useText } from '../text'

/** Shown while a part of a page is loaded. */
export function Loading() {
  const t = useText()
  return <p className="empty">{t.loading}</p>
}
