import type { ReactNode } from 'react'
import { printJson } from '../api/json'
import type { Difference } from '../api/propagation'
import { useTextOf } from '../text'
import { queryText } from '../text/query'
import { Table } from './Table'

/** Characters that fit a line of a table. */
const SHORT = 160

/** A value: inline if it is short, otherwise in a box. */
export function Value({ value }: { value: unknown }) {
  if (value === undefined) return <span className="why">—</span>
  const text = typeof value === 'string' ? value : printJson(value)
  if (text.length <= SHORT && !text.includes('\n')) return <code>{text}</code>
  // The box is scrollable by keyboard.
  return <pre tabIndex={0}>{typeof value === 'string' ? value : printJson(value, 2)}</pre>
}

interface DifferencesProps {
  label: string
  of: Difference[]
  /** Labels of the two sides; default: before and after. */
  sides?: [ReactNode, ReactNode]
  /** The label is shown above the table. */
  caption?: boolean
  /** Placeholder for hidden values. */
  hide?: (path: string) => ReactNode
}

/** A table of fields that differ, with both values. */
export function Differences({ label, of, sides, caption = false, hide }: DifferencesProps) {
  const t = useTextOf(queryText)
  if (of.length === 0) return null
  const value = (path: string, of: unknown) => (of === undefined ? undefined : hide?.(path)) ?? <Value value={of} />
  return (
    <Table label={label} caption={caption} heads={[t.field, ...(sides ?? [t.before, t.after])]}>
      {of.map(({ path, before, after }) => (
        <tr key={path}>
          <th scope="row">
            <code>{path}</code>
          </th>
          <td className="removed">{value(path, before)}</td>
          <td className="added">{value(path, after)}</td>
        </tr>
      ))}
    </Table>
  )
}
