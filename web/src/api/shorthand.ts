// Translates the palette's short commands in the syntax of k9s, such as `:pod shop app=web @member1 /web-.*`, to queries.
import { quote } from './query'

/** True if the text is a short command: it starts with a colon. */
export function isShorthand(text: string): boolean {
  return text.trimStart().startsWith(':')
}

/**
 * Translates `:KIND [NAMESPACE] [KEY=VALUE] [@CLUSTER] [/RE] [/!RE] [/-l SELECTOR] [/-f FUZZY]` to a query. `all`, `-A` and `*` stand for
 * every namespace. A second plain word is searched as text.
 */
export function fromShorthand(text: string): string {
  const words = text.trim().replace(/^:/, '').split(/\s+/).filter(Boolean)
  const terms: string[] = []
  let hasNamespace = false
  const [kind, ...rest] = words
  if (kind !== undefined && /^[@/]|=/.test(kind)) rest.unshift(kind)
  else if (kind !== undefined) terms.push(`kind:${quote(kind)}`)
  for (let i = 0; i < rest.length; i++) {
    const word = rest[i]!
    if (word === '/-l' || word === '/-f') {
      const value = rest[++i]
      if (value !== undefined) terms.push(word === '/-l' ? `label:"${value.replace(/["\\]/g, '\\$&')}"` : `${value}~`)
    } else if (word.startsWith('@')) {
      if (word.length > 1) terms.push(`cluster:${formatClusters(word.slice(1))}`)
    } else if (word.startsWith('/')) {
      const isNegated = word.startsWith('/!')
      const pattern = word.slice(isNegated ? 2 : 1).replace(/\/$/, '')
      if (pattern !== '') terms.push(`${isNegated ? '-' : ''}name:/${pattern.replace(/\\.|\//g, (match) => (match === '/' ? '\\/' : match))}/i`)
    } else if (/^[^=:]+=/.test(word)) terms.push(`label:${word}`)
    else if (!hasNamespace) {
      hasNamespace = true
      if (!['all', '-A', '*'].includes(word)) terms.push(`ns:${/[*?,]/.test(word) ? word : quote(word)}`)
    } else terms.push(word)
  }
  return terms.join(' ')
}

/** The value of `cluster:`. The control plane's name includes the at sign; patterns and lists are not quoted. */
function formatClusters(name: string): string {
  if (name === 'control-plane') return '@control-plane'
  return /[*?,]/.test(name) ? name : quote(name)
}
