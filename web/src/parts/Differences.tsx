import type { Difference } from '../api/propagation'
import { useTextOf } from '../text'
import { asking } from '../text/asking'
import { Table } from './Table'

/** A value on one line; what is longer is cut, and whole in its title. */
export function Value({ value }: { value: unknown }) {
  if (value === undefined) return <span className="why">—</span>
  const text = typeof value === 'string' ? value : JSON.stringify(value)
  return <code title={text}>{text.length > 160 ? `${text.slice(0, 160)}…` : text}</code>
}

/** Fields that change, with what they were and are. */
export function Differences({ label, of }: { label: string; of: Difference[] }) {
  const t = useTextOf(asking)
  if (of.length === 0) return null
  return (
    <Table label={label} heads={[t.field, t.before, t.after]}>
      {of.map(({ path, before, after }) => (
        <tr key={path}>
          <th scope="row">
            <code>{path}</code>
          </th>
          <td className="removed">
            <Value value={before} />
          </td>
          <td className="added">
            <Value value={after} />
          </td>
        </tr>
      ))}
    </Table>
  )
}
