// Kubernetes quantities as numbers, and in short human-readable form.

const UNITS: Record<string, number> = {
  n: 1e-9, u: 1e-6, m: 1e-3, '': 1, k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, E: 1e18,
  Ki: 2 ** 10, Mi: 2 ** 20, Gi: 2 ** 30, Ti: 2 ** 40, Pi: 2 ** 50, Ei: 2 ** 60,
}

/** The value of a quantity; 0 if it is absent or invalid. */
export function quantity(text: string | number | undefined): number {
  const parts = /^([+-]?[\d.]+(?:[eE][+-]?\d+)?)(n|u|m|k|Ki|[MGTPE]i?)?$/.exec(String(text ?? ''))
  if (!parts) return 0
  const value = Number(parts[1]) * UNITS[parts[2] ?? '']!
  return Number.isFinite(value) ? value : 0
}

const BINARY = ['Ei', 'Pi', 'Ti', 'Gi', 'Mi', 'Ki']

/** Human-readable: bytes with binary units, other values with three digits. */
export function readable(resource: string, value: number): string {
  const bytes = /memory|storage/.test(resource)
  const unit = bytes ? BINARY.find((name) => Math.abs(value) >= UNITS[name]!) : undefined
  const shown = unit === undefined ? value : value / UNITS[unit]!
  const digits = shown >= 100 ? 0 : shown >= 10 ? 1 : 2
  return `${Number(shown.toFixed(digits))}${unit ?? ''}`
}

/** A fraction of the total, from 0 to 1. */
export function share(used: number, whole: number): number {
  return whole <= 0 ? (used > 0 ? 1 : 0) : Math.min(1, Math.max(0, used / whole))
}
