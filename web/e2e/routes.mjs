// The paths of all views, as the page defines them.
import assert from 'node:assert/strict'
import { readFile } from 'node:fs/promises'

const SECTIONS = new URL('../src/sections.ts', import.meta.url)

/** Paths that a pattern matches: each alternative of each group, with and without an optional one. */
function expand(pattern) {
  // The innermost groups come first, so that no alternative contains a group.
  const group = /\(([^()]*)\)(\??)/.exec(pattern)
  if (!group) return [pattern.replaceAll('\\/', '/')]
  const [text, alternatives, optional] = group
  return [...alternatives.split('|'), ...(optional ? [''] : [])].flatMap((alternative) => expand(pattern.replace(text, () => alternative)))
}

/** A regular expression for the path of each view, from the patterns of web/src/sections.ts. */
export async function readRoutes() {
  const lines = (await readFile(SECTIONS, 'utf8')).split('\n').filter((line) => /^  \['\w+', /.test(line))
  const patterns = lines.map((line) => /\/\^(.+)\$\/\]/.exec(line)?.[1])
  assert.ok(patterns.length > 0 && !patterns.includes(undefined), `cannot read the patterns of ${lines.join('; ')}`)
  return [...new Set(patterns.flatMap(expand))].map((path) => new RegExp(`^${path}$`))
}
