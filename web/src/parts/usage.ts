// How much of a resource is used, in steps that every view marks in the same way. Pure.

/** Shares from which on a resource is marked as high and as nearly used up. */
const HIGH = 0.7
const FULL = 0.9

export type Usage = 'high' | 'full'

export function usageOf(part: number): Usage | undefined {
  return part >= FULL ? 'full' : part >= HIGH ? 'high' : undefined
}
