import { useId, type ButtonHTMLAttributes } from 'react'

interface ControlProps extends ButtonHTMLAttributes<HTMLButtonElement> {
  /** The reason why it is disabled; it stays focusable, so that the reason can be read. */
  why?: string | undefined
}

/** A button that explains why it is disabled. */
export function Control({ why, onClick, title, ...rest }: ControlProps) {
  const id = useId()
  return (
    <>
      <button
        type="button"
        {...rest}
        title={why ?? title}
        aria-disabled={why !== undefined || undefined}
        aria-describedby={why === undefined ? undefined : id}
        onClick={why === undefined ? onClick : undefined}
      />
      {why !== undefined && (
        <span id={id} hidden>
          {why}
        </span>
      )}
    </>
  )
}
