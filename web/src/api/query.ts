// The query text is the whole search state: these functions edit it as text.

/** A value as the query language takes it: quoted when it holds anything but plain characters. */
export function quote(value: string): string {
  return /^[\w.@/-]+$/.test(value) && !/^-/.test(value) ? value : `"${value.replace(/["\\]/g, '\\$&')}"`
}

/** Adds `field:value` (or `-field:value`), or takes it away when it is there already. */
export function toggle(query: string, field: string, value: string, exclude = false): string {
  const term = `${exclude ? '-' : ''}${field}:${quote(value)}`
  const opposite = `${exclude ? '' : '-'}${field}:${quote(value)}`
  const terms = split(query).filter((t) => t !== opposite)
  const without = terms.filter((t) => t !== term)
  return (without.length < terms.length ? without : [...terms, term]).join(' ')
}

export function has(query: string, field: string, value: string): boolean {
  return split(query).includes(`${field}:${quote(value)}`)
}

/** Splits at blanks outside quotes and parentheses. */
export function split(query: string): string[] {
  const terms: string[] = []
  let term = ''
  let quoted = false
  let depth = 0
  for (let i = 0; i < query.length; i++) {
    const c = query[i]!
    if (quoted && c === '\\') {
      term += c + (query[++i] ?? '')
      continue
    }
    if (c === '"') quoted = !quoted
    if (!quoted && c === '(') depth++
    if (!quoted && c === ')') depth--
    if (!quoted && depth <= 0 && /\s/.test(c)) {
      if (term) terms.push(term)
      term = ''
    } else term += c
  }
  if (term) terms.push(term)
  return terms
}
