import { useId, type ButtonHTMLAttributes } from 'react'

interface ControlProps extends ButtonHTMLAttributes<HTMLButtonElement> {
  /** Why it can't be used now; it stays reachable by keyboard, so that it can say so. */
  why?: string | undefined
}

/** A button that says why it is disabled. */
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
