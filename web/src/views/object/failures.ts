// Failures of a pod: containers that do not run, are not ready, or have failed before, and reasons why it is not scheduled. Has no side effects;
// fields may be missing.
import { isKind } from '../../api/client'
import type { Hit, KubeObject } from '../../api/types'
import { conditions } from './facts'

export interface Failure {
  /** Empty for a failure of the pod. */
  container: string
  /** The state as kubectl prints it: `CrashLoopBackOff`, `OOMKilled`. */
  state: string
  /** Exit code of the current or the previous run. */
  exitCode?: number
  message?: string
  restarts: number
  /** Time at which the current or the previous run ended, or since when the condition is False. */
  since?: string
  /** True if the log of the previous run contains the cause. */
  previous: boolean
}

interface TerminatedState {
  exitCode?: number
  reason?: string
  message?: string
  finishedAt?: string
}

interface ContainerStatus {
  name?: string
  ready?: boolean
  restartCount?: number
  state?: { waiting?: { reason?: string; message?: string }; running?: { startedAt?: string }; terminated?: TerminatedState }
  lastState?: { terminated?: TerminatedState }
}

const exitCodeColumns = (state: keyof Pick<ContainerStatus, 'state' | 'lastState'>) =>
  ['initContainerStatuses', 'containerStatuses'].map((statuses) => `.status.${statuses}[*].${state}.terminated.exitCode`)
/** Columns with the exit codes of the current state of containers, and of their previous runs. */
const CURRENT_EXIT_CODES = exitCodeColumns('state')
const PREVIOUS_EXIT_CODES = exitCodeColumns('lastState')

/** Columns with the times of conditions, and of the ends of runs. */
const CONDITION_TIMES = '.status.conditions[*].lastTransitionTime'
const END_TIMES = ['initContainerStatuses', 'containerStatuses'].flatMap((statuses) => (['state', 'lastState'] as const).map((state) => `.status.${statuses}[*].${state}.terminated.finishedAt`))

/** Columns of a search for pods with the times from which `failedSince` is derived. */
export const TIME_COLUMNS = [CONDITION_TIMES, ...END_TIMES]

/** Since when a pod that was found with these columns is in its state: the last end of a run or change of a condition. */
export function failedSince({ columns = {}, created }: Pick<Hit, 'columns' | 'created'>): string | undefined {
  const times = TIME_COLUMNS.flatMap((name) => (columns[name] ?? '').split(', ')).filter((time) => /^\d{4}-/.test(time))
  return times.sort().at(-1) ?? created
}

/** Columns of a search for pods with the exit codes of their containers. */
export const EXIT_CODE_COLUMNS = [...CURRENT_EXIT_CODES, ...PREVIOUS_EXIT_CODES]

/**
 * Exit codes of the failed containers of a pod that was found with these columns; those of previous runs only if no container
 * has ended with a failure. Empty if there are none.
 */
export function exitCodesOf({ columns = {} }: Pick<Hit, 'columns'>): string {
  const failedCodes = (names: string[]) => names.flatMap((name) => (columns[name] ?? '').split(', ')).filter((code) => code !== '' && code !== '0')
  const current = failedCodes(CURRENT_EXIT_CODES)
  const codes = current.length > 0 ? current : failedCodes(PREVIOUS_EXIT_CODES)
  return [...new Set(codes)].join(', ')
}

/** Waiting reasons of containers that are starting. */
const PROGRESS_REASONS = new Set(['ContainerCreating', 'PodInitializing', undefined])

export function failuresOf(object: KubeObject): Failure[] {
  if (!isKind(object, '', 'Pod')) return []
  const { containerStatuses = [], initContainerStatuses = [], phase, reason, message } = (object.status ?? {}) as Record<string, unknown> & {
    containerStatuses?: ContainerStatus[]
    initContainerStatuses?: ContainerStatus[]
  }
  const failures = [...initContainerStatuses, ...containerStatuses].flatMap(failureOf)
  if (failures.length > 0) return failures
  if (phase !== 'Failed') return object.metadata.deletionTimestamp === undefined && phase !== 'Succeeded' ? conditionFailures(object, containerStatuses) : []
  return [{ container: '', state: String(reason ?? phase), restarts: 0, previous: false, ...(typeof message === 'string' && { message }) }]
}

/** A pod that is not scheduled; otherwise the containers that run and are not ready, which their readiness probe reports, or a readiness gate. */
function conditionFailures(object: KubeObject, containerStatuses: ContainerStatus[]): Failure[] {
  const all = conditions(object)
  const failureBy = (type: string, state: string | undefined, container = ''): Failure[] => {
    const found = all.find((condition) => condition.type === type && condition.status === 'False')
    return found ? [{ container, state: state ?? found.reason, restarts: 0, previous: false, ...(found.message && { message: found.message }), ...(found.since && { since: found.since }) }] : []
  }
  const unscheduled = failureBy('PodScheduled', undefined)
  if (unscheduled.length > 0) return unscheduled
  const notReady = containerStatuses.filter(({ ready, state }) => ready === false && state?.running !== undefined)
  if (notReady.length > 0) return notReady.flatMap(({ name }) => failureBy('ContainersReady', NOT_READY, name))
  return all.some(({ type, status }) => type === 'ContainersReady' && status === 'True') ? failureBy('Ready', undefined) : []
}

/** State of a running container whose readiness probe does not succeed. */
const NOT_READY = 'NotReady'

/** True for a pod that may wait for something that only its events name, such as a volume that cannot be mounted. */
export function isWaiting(object: KubeObject): boolean {
  if (!isKind(object, '', 'Pod') || object.metadata.deletionTimestamp !== undefined) return false
  const { phase } = (object.status ?? {}) as { phase?: string }
  return phase === 'Pending' || (phase === 'Running' && conditions(object).some(({ type, status }) => type === 'Ready' && status === 'False'))
}

function failureOf({ name = '', restartCount: restarts = 0, state = {}, lastState = {} }: ContainerStatus): Failure[] {
  const before = lastState.terminated
  const ended = state.terminated ?? before
  const common = {
    container: name,
    restarts,
    ...(ended?.exitCode !== undefined && { exitCode: ended.exitCode }),
    ...(ended?.finishedAt !== undefined && { since: ended.finishedAt }),
    previous: state.terminated === undefined && before !== undefined,
  }
  const withMessage = (message: string | undefined) => (message ? { message } : {})
  if (state.waiting) {
    const { reason, message } = state.waiting
    return PROGRESS_REASONS.has(reason) ? [] : [{ ...common, state: reason ?? '', ...withMessage(before?.message ?? message) }]
  }
  if (state.terminated) {
    const { exitCode = 0, reason, message } = state.terminated
    return exitCode === 0 ? [] : [{ ...common, state: reason ?? `ExitCode:${exitCode}`, ...withMessage(message) }]
  }
  // The container runs again after a failure.
  return before !== undefined && before.exitCode !== 0 ? [{ ...common, state: before.reason ?? 'Error', ...withMessage(before.message) }] : []
}
