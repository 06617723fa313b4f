import { useText } from '../text'

/** The outline of content that is being loaded. */
export function Skeleton() {
  const t = useText()
  return (
    <div className="skeleton">
      <span className="visually-hidden">{t.loading}</span>
      <i aria-hidden="true" />
      <i aria-hidden="true" />
      <i aria-hidden="true" />
    </div>
  )
}
