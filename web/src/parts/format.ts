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

export function since(time: string | undefined, now = Date.now()): string {
  if (!time) return ''
  const at = Date.parse(time)
  return Number.isNaN(at) ? '' : age((now - at) / 1000)
}

/** A steady colour for a cluster's name, the same on every page and for everybody. */
export function colour(name: string): string {
  let hash = 2166136261
  for (const c of name) hash = Math.imul(hash ^ c.charCodeAt(0), 16777619)
  // Names of a fleet often differ in their last letter only: spread that over all bits.
  hash = Math.imul(hash ^ (hash >>> 16), 0x85ebca6b)
  hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35)
  hash = (hash ^ (hash >>> 16)) >>> 0
  const lightness = [0.5, 0.62, 0.74][(hash >>> 8) % 3]
  return `oklch(${lightness} 0.15 ${(hash % 24) * 15})`
}
