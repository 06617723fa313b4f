import type { ReactNode } from 'react'

/** A table that scrolls by itself where it is too wide, also by keyboard. */
export function Table({ label, heads, children }: { label: string; heads: string[]; children: ReactNode }) {
  return (
    <div className="scroll" role="region" aria-label={label} tabIndex={0}>
      <table aria-label={label}>
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
