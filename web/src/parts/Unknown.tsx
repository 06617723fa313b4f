/** A dash in place of a value that is unknown, so that it does not look like 0. `label` is its tooltip and accessible name. */
export function Unknown({ label }: { label: string }) {
  return (
    <span role="img" aria-label={label} title={label}>
      -
    </span>
  )
}
