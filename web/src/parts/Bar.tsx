import { share } from '../api/quantity'
import { usageOf } from './usage'

interface BarProps {
  label: string
  used: number
  whole: number
  /** Used and total, as text. */
  text: string
}

/** Usage of a resource. High usage is indicated by text as well as colour. */
export function Bar({ label, used, whole, text }: BarProps) {
  const part = share(used, whole)
  const percent = Math.round(part * 100)
  return (
    <span className="bar" role="meter" aria-label={label} aria-valuemin={0} aria-valuemax={100} aria-valuenow={percent} aria-valuetext={`${text}, ${percent} %`} title={`${label}: ${text} (${percent} %)`}>
      <span aria-hidden="true">{text}</span>
      <i aria-hidden="true">
        <i className={usageOf(part)} style={{ width: `${percent}%` }} />
      </i>
    </span>
  )
}
