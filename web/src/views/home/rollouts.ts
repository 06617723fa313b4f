// Rollouts in progress, from the numbers and revisions of workloads in the index. Has no side effects.
import { quote } from '../../api/query'
import type { Hit } from '../../api/types'

const WORKLOADS = 'kind:deployment.apps,statefulset.apps,daemonset.apps'
/** Reasons of a Deployment's condition Progressing while a rollout is in progress. */
const PROGRESS_REASONS = ['ReplicaSetUpdated', 'NewReplicaSetCreated', 'FoundNewReplicaSet', 'ReplicaSetCreated']

/** Query for the workloads that may be rolled out. StatefulSets and DaemonSets have no such reasons, and may be ready during a rollout. */
export const ROLLOUT_CANDIDATES_QUERY = `${WORKLOADS} (reason:${PROGRESS_REASONS.join()} OR is:unhealthy OR changed:<1h) sort:-changed`
/** Maximum number of candidates that are requested. A rollout in progress changes its workload often, so it is among the first. */
export const MAX_ROLLOUT_CANDIDATES = 50

const FIELDS = {
  generation: '.metadata.generation',
  observed: '.status.observedGeneration',
  reasons: '.status.conditions[*].reason',
  desired: '.spec.replicas',
  current: '.status.replicas',
  updated: '.status.updatedReplicas',
  currentRevision: '.status.currentRevision',
  updateRevision: '.status.updateRevision',
  strategy: '.spec.updateStrategy.type',
  partition: '.spec.updateStrategy.rollingUpdate.partition',
  desiredNodes: '.status.desiredNumberScheduled',
  updatedNodes: '.status.updatedNumberScheduled',
} as const

/** Columns of a search for workloads from which rollouts are derived. */
export const ROLLOUT_COLUMNS: string[] = ['changed', ...Object.values(FIELDS)]

export interface Rollout {
  hit: Hit
  updated: number
  desired: number
}

/** The rollout of a workload that was found with these columns; undefined if none is in progress. The rules are those of `kubectl rollout status`, except that available pods are not counted. */
export function rolloutOf(hit: Hit): Rollout | undefined {
  const text = (field: keyof typeof FIELDS) => hit.columns?.[FIELDS[field]]
  const number = (field: keyof typeof FIELDS) => Number(text(field) ?? 0)
  const isDaemonSet = hit.kind === 'DaemonSet'
  const [updated, desired] = isDaemonSet ? [number('updatedNodes'), number('desiredNodes')] : [number('updated'), number('desired')]
  // A template that is not propagated has no status. With OnDelete, pods are replaced only when the user deletes them.
  if (text('observed') === undefined || text('strategy') === 'OnDelete' || desired === 0) return undefined
  const isObserved = number('observed') >= number('generation')
  return !isObserved || IN_PROGRESS[hit.kind]?.({ text, number, updated, desired }) ? { hit, updated: Math.min(updated, desired), desired } : undefined
}

/** Query for these rollouts; undefined if there are none. A query cannot compare the numbers of a workload, so it names each by its UID. */
export function rolloutsQuery(rollouts: readonly Rollout[]): string | undefined {
  const uids = rollouts.flatMap(({ hit }) => hit.uid ?? [])
  return uids.length === 0 ? undefined : `uid:${uids.map(quote).join()} sort:-changed`
}

interface Workload {
  text: (field: keyof typeof FIELDS) => string | undefined
  number: (field: keyof typeof FIELDS) => number
  updated: number
  desired: number
}

/** Conditions of a rollout in progress, by kind. */
const IN_PROGRESS: Record<string, (workload: Workload) => boolean> = {
  Deployment: ({ text, number, updated, desired }) => updated < desired || number('current') > updated || PROGRESS_REASONS.some((reason) => text('reasons')?.split(', ').includes(reason)),
  StatefulSet: ({ text, number, updated, desired }) => {
    const partition = number('partition')
    // The revisions differ until all pods are updated and ready. The status of a template has none.
    if (text('currentRevision') === text('updateRevision')) return false
    return partition === 0 || updated < desired - partition
  },
  DaemonSet: ({ updated, desired }) => updated < desired,
}
