import { useEffect, useRef, useState, type ReactNode } from 'react'
import { Control } from './Control'

interface PopoverProps {
  label: string
  why?: string | undefined
  /** Class of the button. */
  className?: string
  title?: string
  /** Decoration before the label. */
  lead?: ReactNode
  children: (close: () => void) => ReactNode
}

/** A button that opens a small panel below it; Escape and a click elsewhere close it. */
export function Popover({ label, why, className, title, lead, children }: PopoverProps) {
  const [open, setOpen] = useState(false)
  const place = useRef<HTMLDivElement>(null)
  const close = () => {
    setOpen(false)
    place.current?.querySelector('button')?.focus()
  }

  useEffect(() => {
    if (!open) return
    place.current?.querySelector<HTMLElement>('.panel input, .panel select, .panel button')?.focus()
    const outside = (event: PointerEvent) => {
      if (!place.current?.contains(event.target as Node)) setOpen(false)
    }
    window.addEventListener('pointerdown', outside)
    return () => window.removeEventListener('pointerdown', outside)
  }, [open])

  return (
    <div
      className="popover"
      ref={place}
      onKeyDown={(event) => {
        if (event.key !== 'Escape' || !open) return
        event.stopPropagation()
        close()
      }}
    >
      <Control why={why} className={className} title={title} aria-expanded={open} aria-haspopup="true" onClick={() => setOpen(!open)}>
        {lead}
        {label}
      </Control>
      {open && (
        <div className="panel" role="group" aria-label={label}>
          {children(close)}
        </div>
      )}
    </div>
  )
}
