interface StarProps {
  isOn: boolean
  /** Accessible name of the button. */
  label: string
  /** Sets the star, or removes it. */
  onToggle: () => void
}

/** Button with a star, which marks an entry of a list as one of those that are listed first. */
export function Star({ isOn, label, onToggle }: StarProps) {
  return (
    <button type="button" className="quiet star" aria-pressed={isOn} aria-label={label} title={label} onClick={onToggle}>
      <span aria-hidden="true">{isOn ? '★' : '☆'}</span>
    </button>
  )
}
