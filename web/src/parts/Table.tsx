import type { ReactNode } from 'react'
import './panels.css'

interface TableProps {
  label: string
  heads: readonly ReactNode[]
  /** The label is shown above it if there is no heading. */
  caption?: boolean
  children: ReactNode
}

/** A table that scrolls horizontally if it is too wide, also by keyboard. */
export function Table({ label, heads, caption = false, children }: TableProps) {
  return (
    <div className="scroll" role="region" aria-label={label} tabIndex={0}>
      <table aria-label={label}>
        {caption && <caption>{label}</caption>}
        <thead>
          <tr>
            {heads.map((head, nth) => (
              <th key={nth} scope="col">
                {head}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>{children}</tbody>
      </table>
    </div>
  )
}
