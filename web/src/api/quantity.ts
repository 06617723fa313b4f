// Kubernetes quantities as numbers, and in short human-readable form.

const UNITS: Record<string, number> = {
  n: 1e-9, u: 1e-6, m: 1e-3, '': 1, k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, E: 1e18,
  Ki: 2 ** 10, Mi: 2 ** 20, Gi: 2 ** 30, Ti: 2 ** 40, Pi: 2 ** 50, Ei: 2 ** 60,
}

/** The value of a quantity; 0 if it is absent or invalid. */
export function parseQuantity(text: string | number | undefined): number {
  const parts = /^([+-]?[\d.]+(?:[eE][+-]?\d+)?)(n|u|m|k|Ki|[MGTPE]i?)?$/.exec(String(text ?? ''))
  if (!parts) return 0
  const value = Number(parts[1]) * UNITS[parts[2] ?? '']!
  return Number.isFinite(value) ? value : 0
}

const BINARY_UNITS = ['Ei', 'Pi', 'Ti', 'Gi', 'Mi', 'Ki']

/** A value in base units as text: memory and storage with binary units; values below 100 are rounded to three digits. */
export function formatQuantity(resource: string, value: number): string {
  const isBytes = /memory|storage/.test(resource)
  const unit = isBytes ? BINARY_UNITS.find((name) => Math.abs(value) >= UNITS[name]!) : undefined
  const scaled = unit === undefined ? value : value / UNITS[unit]!
  const digits = scaled >= 100 ? 0 : scaled >= 10 ? 1 : 2
  return `${Number(scaled.toFixed(digits))}${unit ?? ''}`
}

/** The used fraction of a total, from 0 to 1; 1 if a total of 0 is in use. */
export function usedFraction(used: number, total: number): number {
  return total <= 0 ? (used > 0 ? 1 : 0) : Math.min(1, Math.max(0, used / total))
}
