// Levels of resource usage, which every view marks in the same way. Has no side effects.

/** Used fractions from which on usage is high, and full. */
const HIGH_FRACTION = 0.7
const FULL_FRACTION = 0.9

export type UsageLevel = 'high' | 'full'

export function usageLevelOf(fraction: number): UsageLevel | undefined {
  return fraction >= FULL_FRACTION ? 'full' : fraction >= HIGH_FRACTION ? 'high' : undefined
}
