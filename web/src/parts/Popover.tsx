import { useEffect, useRef, useState, type ReactNode } from 'react'
import { ActionButton } from './ActionButton'

interface PopoverProps {
  label: string
  disabledReason?: string | undefined
  /** Class of the button. */
  className?: string
  title?: string
  /** Decorative element before the label. */
  icon?: ReactNode
  children: (close: () => void) => ReactNode
}

/** A button that opens a small panel below it; Escape and a click elsewhere close it. */
export function Popover({ label, disabledReason, className, title, icon, children }: PopoverProps) {
  const [open, setOpen] = useState(false)
  const container = useRef<HTMLDivElement>(null)
  const close = () => {
    setOpen(false)
    container.current?.querySelector('button')?.focus()
  }

  useEffect(() => {
    if (!open) return
    container.current?.querySelector<HTMLElement>('.panel input, .panel select, .panel button')?.focus()
    const closeOutside = (event: PointerEvent) => {
      if (!container.current?.contains(event.target as Node)) setOpen(false)
    }
    window.addEventListener('pointerdown', closeOutside)
    return () => window.removeEventListener('pointerdown', closeOutside)
  }, [open])

  return (
    <div
      className="popover"
      ref={container}
      onKeyDown={(event) => {
        if (event.key !== 'Escape' || !open) return
        event.stopPropagation()
        close()
      }}
    >
      <ActionButton disabledReason={disabledReason} className={className} title={title} aria-expanded={open} aria-haspopup="true" onClick={() => setOpen(!open)}>
        {icon}
        {label}
      </ActionButton>
      {open && (
        <div className="panel" role="group" aria-label={label}>
          {children(close)}
        </div>
      )}
    </div>
  )
}
