import type { ReactNode } from 'react'
import { printJson } from '../api/json'
import type { Difference } from '../api/propagation'
import { useTextOf } from '../text'
import { queryText } from '../text/query'
import { Table } from './Table'

/** Maximum length of a value that is shown inline. */
const MAX_INLINE_CHARACTERS = 160

/** A field's value: inline if it is short, otherwise in a scrollable box. */
export function Value({ value }: { value: unknown }) {
  if (value === undefined) return <span className="why">—</span>
  const text = typeof value === 'string' ? value : printJson(value)
  if (text.length <= MAX_INLINE_CHARACTERS && !text.includes('\n')) return <code>{text}</code>
  // The box is scrollable by keyboard.
  return <pre tabIndex={0}>{typeof value === 'string' ? value : printJson(value, 2)}</pre>
}

interface DifferencesProps {
  label: string
  differences: Difference[]
  /** Labels of the two sides; default: before and after. */
  sides?: [ReactNode, ReactNode]
  /** The label is shown above the table. */
  caption?: boolean
  /** Placeholder for hidden values. */
  hide?: (path: string) => ReactNode
}

/** A table of fields that differ, with both values. */
export function Differences({ label, differences, sides, caption = false, hide }: DifferencesProps) {
  const t = useTextOf(queryText)
  if (differences.length === 0) return null
  const renderSide = (path: string, side: unknown) => (side === undefined ? undefined : hide?.(path)) ?? <Value value={side} />
  return (
    <Table label={label} caption={caption} headers={[t.field, ...(sides ?? [t.before, t.after])]}>
      {differences.map(({ path, before, after }) => (
        <tr key={path}>
          <th scope="row">
            <code>{path}</code>
          </th>
          <td className="removed">{renderSide(path, before)}</td>
          <td className="added">{renderSide(path, after)}</td>
        </tr>
      ))}
    </Table>
  )
}
