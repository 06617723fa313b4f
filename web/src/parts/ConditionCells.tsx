import type { Condition } from '../api/karmada'
import { formatAgeSince } from './format'

/** Cells of a table row: reason, age and message of a condition. */
export function ConditionCells({ condition: { reason, lastTransitionTime, message } }: { condition: Condition }) {
  return (
    <>
      <td>{reason}</td>
      <td>{formatAgeSince(lastTransitionTime)}</td>
      <td>{message}</td>
    </>
  )
}
