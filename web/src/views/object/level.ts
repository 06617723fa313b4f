// The level of a log line, and occurrences of a text in it. Has no side effects.
import type { Tone } from '../../parts/status'

/** Number of characters at the beginning of a line that are searched for a level. */
const MAX_PREFIX_CHARACTERS = 300

/** In structured lines: `"level":"error"`, `level=warn`, `severity: ERROR`. */
const FIELD = /\b(?:level|lvl|severity)"?\s*[=:]\s*"?([a-z]+)/i
/** klog: `E0801 10:00:00.000000`. */
const KLOG = /^([FEWI])\d{4} \d\d:/
/** In other lines only in capitals or in brackets, so that a text about errors is not an error. */
const WORD = /\b(FATAL|PANIC|CRITICAL|ERROR|ERR|WARNING|WARN|DEBUG|TRACE)\b|\[(fatal|panic|crit|error|err|warning|warn|debug|trace)\]/

const TONES: [RegExp, Tone][] = [
  [/^(f|e|fatal|panic|crit|critical|error|err|alert|emerg|emergency|dpanic)$/, 'bad'],
  [/^(w|warn|warning)$/, 'warn'],
  [/^(debug|trace|verbose)$/, 'idle'],
]

/** `bad` for errors, `warn` for warnings, `idle` for debug output; undefined for all others. */
export function levelOf(text: string): Tone | undefined {
  const begin = text.slice(0, MAX_PREFIX_CHARACTERS)
  const word = FIELD.exec(begin)?.[1] ?? KLOG.exec(begin)?.[1] ?? WORD.exec(begin)?.slice(1).find(Boolean)
  return word === undefined ? undefined : TONES.find(([words]) => words.test(word.toLowerCase()))?.[1]
}

/** Splits a line at the occurrences of a text, ignoring case; these pieces are `hit`. */
export function splitByText(line: string, text: string | undefined): { text: string; hit: boolean }[] {
  if (!text) return [{ text: line, hit: false }]
  const pieces: { text: string; hit: boolean }[] = []
  const [lowerLine, lowerText] = [line.toLowerCase(), text.toLowerCase()]
  let at = 0
  for (let found = lowerLine.indexOf(lowerText); found >= 0; found = lowerLine.indexOf(lowerText, at)) {
    if (found > at) pieces.push({ text: line.slice(at, found), hit: false })
    at = found + lowerText.length
    pieces.push({ text: line.slice(found, at), hit: true })
  }
  if (at < line.length) pieces.push({ text: line.slice(at), hit: false })
  return pieces
}
