// Effect of the loss of a cluster on its workloads, counted in a plan. Has no side effects.
import type { PlanReport, TemplatePlan } from '../../api/propagation'

export interface LossCounts {
  /** Templates that leave the cluster, and are placed without it. */
  leaving: number
  /** Templates that leave the cluster, and fit no other one. */
  unplaced: number
  /** Templates that stay assigned to the cluster. */
  staying: number
  /** True if some affected templates are not in the plan, so that there may be more of each. */
  isLowerBound: boolean
}

/** True if the scheduler finds no clusters for the template, or it cannot be planned. */
const isUnplaced = ({ message, scheduling }: TemplatePlan) => message !== undefined || scheduling?.decision === 'Fail' || scheduling?.decision === 'Clear'

/** Counts the templates that are in the cluster before its loss. */
export function countLoss({ templates, more, withheld }: PlanReport, cluster: string): LossCounts {
  const counts: LossCounts = { leaving: 0, unplaced: 0, staying: 0, isLowerBound: more + withheld > 0 }
  for (const template of templates) {
    const change = template.clusters.find(({ name }) => name === cluster)?.change
    if (change === undefined || change === 'Added') continue
    counts[change !== 'Removed' ? 'staying' : isUnplaced(template) ? 'unplaced' : 'leaving']++
  }
  return counts
}
