import type { ReactNode } from 'react'

interface ListOptionProps {
  id: string
  selected: boolean
  onClick: () => void
  children: ReactNode
}

/** An option of a list box whose input keeps the focus. */
export function ListOption({ id, selected, onClick, children }: ListOptionProps) {
  return (
    <li id={id} role="option" aria-selected={selected} onPointerDown={(event) => event.preventDefault()} onClick={onClick}>
      {children}
    </li>
  )
}
