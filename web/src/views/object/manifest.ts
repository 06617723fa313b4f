/** Removes `metadata.managedFields` from a manifest's text. */
export function withoutManagedFields(text: string): string {
  const remaining: string[] = []
  let inside = false
  let metadata = false
  for (const line of text.split('\n')) {
    if (/^\S/.test(line)) metadata = line.startsWith('metadata:')
    if (inside && (/^ {2}[^\s-]/.test(line) || /^\S/.test(line))) inside = false
    if (metadata && /^ {2}managedFields:/.test(line)) inside = true
    if (!inside) remaining.push(line)
  }
  return remaining.join('\n')
}
