/** Formats an age as kubectl does (HumanDuration of k8s.io/apimachinery), except that years are shown in days. */
export function formatAge(seconds: number): string {
  const s = Math.max(0, Math.floor(seconds))
  if (s < 120) return `${s}s`
  const m = Math.floor(s / 60)
  if (m < 10) return s % 60 === 0 ? `${m}m` : `${m}m${s % 60}s`
  if (m < 180) return `${m}m`
  const h = Math.floor(m / 60)
  if (h < 8) return m % 60 === 0 ? `${h}h` : `${h}h${m % 60}m`
  if (h < 48) return `${h}h`
  const d = Math.floor(h / 24)
  return d < 8 && h % 24 !== 0 ? `${d}d${h % 24}h` : `${d}d`
}

/** The language of the page, which can differ from the browser's. */
const language = () => document.documentElement.lang || undefined

/** Formats a number in the language of the page. */
export function formatNumber(n: number): string {
  return n.toLocaleString(language())
}

/** Formats a time with its weekday. */
export function formatWeekdayTime(at: Date): string {
  return at.toLocaleString(language(), { weekday: 'short', hour: 'numeric', minute: '2-digit' })
}

/** Formats a time of day. */
export function formatTime(at: Date): string {
  return at.toLocaleTimeString(language())
}

/** The age of a time stamp at `now` (Unix milliseconds); empty without a valid time. */
export function formatAgeSince(time: string | undefined, now = Date.now()): string {
  if (!time) return ''
  const at = Date.parse(time)
  return Number.isNaN(at) ? '' : formatAge((now - at) / 1000)
}

/** A hash of a name, the same on every page and for all users. */
function hash(name: string): number {
  let hash = 2166136261
  for (const c of name) hash = Math.imul(hash ^ c.charCodeAt(0), 16777619)
  // Names in a fleet often differ only in their last letter: spread that over all bits.
  hash = Math.imul(hash ^ (hash >>> 16), 0x85ebca6b)
  hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35)
  return (hash ^ (hash >>> 16)) >>> 0
}

/** A colour for a name, the same on every page and for all users. */
export function stableColour(name: string): string {
  const nameHash = hash(name)
  const lightness = [0.5, 0.62, 0.74][(nameHash >>> 8) % 3]
  return `oklch(${lightness} 0.15 ${(nameHash % 24) * 15})`
}

/** An index of a shape for a name, below `shapes`. */
export function stableIndex(name: string, shapes: number): number {
  return (hash(name) >>> 16) % shapes
}

/** Splits a text into highlighted and other parts. `marks` are ranges in UTF-8 bytes. */
export function splitByMarks(text: string, marks: [number, number][] = []): { text: string; hit: boolean }[] {
  if (marks.length === 0) return [{ text, hit: false }]
  const bytes = new TextEncoder().encode(text)
  const decoder = new TextDecoder()
  const decode = (from: number, to: number, hit: boolean) => ({ text: decoder.decode(bytes.slice(from, to)), hit })
  let at = 0
  const allParts = marks.flatMap(([from, to]) => {
    const parts = [decode(at, from, false), decode(from, to, true)]
    at = to
    return parts
  })
  return [...allParts, decode(at, bytes.length, false)].filter(({ text }) => text !== '')
}
