import type { SkippedCluster } from '../api/types'
import type { Text } from '../text'
import { formatAge } from './format'

/** Text for a skipped cluster: the reason why its data is missing or outdated, and the age of outdated data. */
export function skippedText({ reason, ageSeconds }: Pick<SkippedCluster, 'reason' | 'ageSeconds'>, t: Pick<Text, 'asOf'>): string {
  return ageSeconds === undefined ? reason : `${reason}, ${t.asOf(formatAge(ageSeconds))}`
}
