import type { Skipped } from '../api/types'
import type { Text } from '../text'
import { formatAge } from './format'

/** Why the data of a cluster is missing or outdated, and the age of outdated data. */
export function skippedText({ reason, ageSeconds }: Pick<Skipped, 'reason' | 'ageSeconds'>, t: Pick<Text, 'asOf'>): string {
  return ageSeconds === undefined ? reason : `${reason}, ${t.asOf(formatAge(ageSeconds))}`
}
