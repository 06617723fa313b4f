/** Removes `metadata.managedFields` from a manifest's text. */
export function withoutManagedFields(text: string): string {
  const remaining: string[] = []
  let isInMetadata = false
  let isInManagedFields = false
  for (const line of text.split('\n')) {
    if (/^\S/.test(line)) isInMetadata = line.startsWith('metadata:')
    if (isInManagedFields && (/^ {2}[^\s-]/.test(line) || /^\S/.test(line))) isInManagedFields = false
    if (isInMetadata && /^ {2}managedFields:/.test(line)) isInManagedFields = true
    if (!isInManagedFields) remaining.push(line)
  }
  return remaining.join('\n')
}
