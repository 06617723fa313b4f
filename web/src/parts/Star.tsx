interface StarProps {
  isOn: boolean
  /** Name of what has the star. */
  label: string
  onToggle: () => void
}

/** Marks an entry, which is then listed first. */
export function Star({ isOn, label, onToggle }: StarProps) {
  return (
    <button type="button" className="quiet star" aria-pressed={isOn} aria-label={label} title={label} onClick={onToggle}>
      <span aria-hidden="true">{isOn ? '★' : '☆'}</span>
    </button>
  )
}
