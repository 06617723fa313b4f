import { usedFraction } from '../api/quantity'
import { usageLevelOf } from './usage'

interface BarProps {
  label: string
  used: number
  total: number
  /** Used and total, as text. */
  text: string
}

/** Meter of a resource's usage. Its text and percentage convey what the colour shows. */
export function Bar({ label, used, total, text }: BarProps) {
  const fraction = usedFraction(used, total)
  const percent = Math.round(fraction * 100)
  return (
    <span className="bar" role="meter" aria-label={label} aria-valuemin={0} aria-valuemax={100} aria-valuenow={percent} aria-valuetext={`${text}, ${percent} %`} title={`${label}: ${text} (${percent} %)`}>
      <span aria-hidden="true">{text}</span>
      <i aria-hidden="true">
        <i className={usageLevelOf(fraction)} style={{ width: `${percent}%` }} />
      </i>
    </span>
  )
}
