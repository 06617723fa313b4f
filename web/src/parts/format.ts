/** Ages as kubectl prints them: two units below ten of the larger one. */
export function age(seconds: number): string {
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

/** The language of the page, which the user may have changed from the browser's. */
const language = () => document.documentElement.lang || undefined

export function number(n: number): string {
  return n.toLocaleString(language())
}

/** A time of another day, with its weekday. */
export function weekday(at: Date): string {
  return at.toLocaleString(language(), { weekday: 'short', hour: 'numeric', minute: '2-digit' })
}

/** A time of day. */
export function clock(at: Date): string {
  return at.toLocaleTimeString(language())
}

export function since(time: string | undefined, now = Date.now()): string {
  if (!time) return ''
  const at = Date.parse(time)
  return Number.isNaN(at) ? '' : age((now - at) / 1000)
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

/** A stable colour for a cluster's name. */
export function colour(name: string): string {
  const of = hash(name)
  const lightness = [0.5, 0.62, 0.74][(of >>> 8) % 3]
  return `oklch(${lightness} 0.15 ${(of % 24) * 15})`
}

/** A stable index of a shape. */
export function icon(name: string, shapes: number): number {
  return (hash(name) >>> 16) % shapes
}

/** Splits a text into highlighted and other parts. Highlights are in bytes. */
export function marked(text: string, marks: [number, number][] = []): { text: string; hit: boolean }[] {
  if (marks.length === 0) return [{ text, hit: false }]
  const bytes = new TextEncoder().encode(text)
  const decoder = new TextDecoder()
  const piece = (from: number, to: number, hit: boolean) => ({ text: decoder.decode(bytes.slice(from, to)), hit })
  let at = 0
  const pieces = marks.flatMap(([from, to]) => {
    const two = [piece(at, from, false), piece(from, to, true)]
    at = to
    return two
  })
  return [...pieces, piece(at, bytes.length, false)].filter(({ text }) => text !== '')
}
