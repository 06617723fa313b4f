// Why a pod fails: its containers that do not run, or were restarted. Pure; fields may be missing.
import { isKind } from '../../api/client'
import type { KubeObject } from '../../api/types'

export interface Failure {
  container: string
  /** The state as kubectl prints it: `CrashLoopBackOff`, `OOMKilled`. */
  state: string
  /** Of the current or the previous run. */
  exitCode?: number
  message?: string
  restarts: number
  /** When the current or the previous run ended. */
  since?: string
  /** The log of the previous run tells more than that of the current one. */
  previous: boolean
}

interface Ended {
  exitCode?: number
  reason?: string
  message?: string
  finishedAt?: string
}

interface ContainerStatus {
  name?: string
  ready?: boolean
  restartCount?: number
  state?: { waiting?: { reason?: string; message?: string }; running?: { startedAt?: string }; terminated?: Ended }
  lastState?: { terminated?: Ended }
}

/** Reasons for waiting that are progress. */
const PROGRESS = new Set(['ContainerCreating', 'PodInitializing', undefined])

export function failuresOf(object: KubeObject): Failure[] {
  if (!isKind(object, '', 'Pod')) return []
  const { containerStatuses = [], initContainerStatuses = [], phase, reason, message } = (object.status ?? {}) as Record<string, unknown> & {
    containerStatuses?: ContainerStatus[]
    initContainerStatuses?: ContainerStatus[]
  }
  const found = [...initContainerStatuses, ...containerStatuses].flatMap(failureOf)
  if (found.length > 0 || phase !== 'Failed') return found
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
    return PROGRESS.has(reason) ? [] : [{ ...common, state: reason ?? '', ...withMessage(before?.message ?? message) }]
  }
  if (state.terminated) {
    const { exitCode = 0, reason, message } = state.terminated
    return exitCode === 0 ? [] : [{ ...common, state: reason ?? `ExitCode:${exitCode}`, ...withMessage(message) }]
  }
  // It runs again after a failure.
  return before !== undefined && before.exitCode !== 0 ? [{ ...common, state: before.reason ?? 'Error', ...withMessage(before.message) }] : []
}
