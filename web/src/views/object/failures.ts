// Failures of a pod: containers that do not run, or have failed before. Has no side effects; fields may be missing.
import { isKind } from '../../api/client'
import type { Hit, KubeObject } from '../../api/types'

export interface Failure {
  container: string
  /** The state as kubectl prints it: `CrashLoopBackOff`, `OOMKilled`. */
  state: string
  /** Exit code of the current or the previous run. */
  exitCode?: number
  message?: string
  restarts: number
  /** Time at which the current or the previous run ended. */
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
  if (failures.length > 0 || phase !== 'Failed') return failures
  return [{ container: '', state: String(reason ?? phase), restarts: 0, previous: false, ...(typeof message === 'string' && { message }) }]
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
