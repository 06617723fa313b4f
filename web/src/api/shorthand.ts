// The palette's short commands in k9s' syntax: `:pod shop app=web @member1 /web-.*` is translated to a query.
import { quote } from './query'

/** True if the text starts as a command. */
export function isShorthand(text: string): boolean {
  return text.trimStart().startsWith(':')
}

/**
 * `:KIND [NAMESPACE] [KEY=VALUE] [@CLUSTER] [/RE] [/!RE] [/-l SELECTOR] [/-f FUZZY]` as a query. `all`, `-A` and `*` are every namespace.
 * A second plain word is searched as text.
 */
export function fromShorthand(text: string): string {
  const words = text.trim().replace(/^:/, '').split(/\s+/).filter(Boolean)
  const terms: string[] = []
  let namespaced = false
  const [kind, ...rest] = words
  if (kind !== undefined && /^[@/]|=/.test(kind)) rest.unshift(kind)
  else if (kind !== undefined) terms.push(`kind:${quote(kind)}`)
  for (let i = 0; i < rest.length; i++) {
    const word = rest[i]!
    if (word === '/-l' || word === '/-f') {
      const value = rest[++i]
      if (value !== undefined) terms.push(word === '/-l' ? `label:"${value.replace(/["\\]/g, '\\$&')}"` : `${value}~`)
    } else if (word.startsWith('@')) {
      if (word.length > 1) terms.push(`cluster:${clusters(word.slice(1))}`)
    } else if (word.startsWith('/')) {
      const not = word.startsWith('/!')
      const pattern = word.slice(not ? 2 : 1).replace(/\/$/, '')
      if (pattern !== '') terms.push(`${not ? '-' : ''}name:/${pattern.replace(/\\.|\//g, (found) => (found === '/' ? '\\/' : found))}/i`)
    } else if (/^[^=:]+=/.test(word)) terms.push(`label:${word}`)
    else if (!namespaced) {
      namespaced = true
      if (!['all', '-A', '*'].includes(word)) terms.push(`ns:${/[*?,]/.test(word) ? word : quote(word)}`)
    } else terms.push(word)
  }
  return terms.join(' ')
}

/** `@control-plane` is a cluster name that includes the sign; globs and commas are kept. */
function clusters(name: string): string {
  if (name === 'control-plane') return '@control-plane'
  return /[*?,]/.test(name) ? name : quote(name)
}
