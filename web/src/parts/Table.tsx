import type { ReactNode } from 'react'
import './panels.css'

interface TableProps {
  label: string
  headers: readonly ReactNode[]
  /** Shows the label above the table. */
  caption?: boolean
  /** Rows in groups: `children` are `tbody` elements. */
  grouped?: boolean
  children: ReactNode
}

/** A table that scrolls horizontally if it is too wide, also by keyboard. */
export function Table({ label, headers, caption = false, grouped = false, children }: TableProps) {
  return (
    <div className="scroll" role="region" aria-label={label} tabIndex={0}>
      <table aria-label={label}>
        {caption && <caption>{label}</caption>}
        <thead>
          <tr>
            {headers.map((header, nth) => (
              <th key={nth} scope="col">
                {header}
              </th>
            ))}
          </tr>
        </thead>
        {grouped ? children : <tbody>{children}</tbody>}
      </table>
    </div>
  )
}
