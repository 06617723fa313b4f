import { useId, type ButtonHTMLAttributes } from 'react'

interface ActionButtonProps extends ButtonHTMLAttributes<HTMLButtonElement> {
  /** Reason why the button is disabled; absent: it is enabled. A disabled button stays focusable, so that the reason can be read. */
  disabledReason?: string | undefined
}

/** A button that explains why it is disabled. */
export function ActionButton({ disabledReason, onClick, title, ...rest }: ActionButtonProps) {
  const id = useId()
  return (
    <>
      <button
        type="button"
        {...rest}
        title={disabledReason ?? title}
        aria-disabled={disabledReason !== undefined || undefined}
        aria-describedby={disabledReason === undefined ? undefined : id}
        onClick={disabledReason === undefined ? onClick : undefined}
      />
      {disabledReason !== undefined && (
        <span id={id} hidden>
          {disabledReason}
        </span>
      )}
    </>
  )
}
