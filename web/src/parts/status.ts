// Tones of the states of all kinds, for every view.

/** `good`: as desired; `busy`: in progress; `warn`: may need attention; `bad`: failed; `idle`: none of these. */
export type Tone = 'good' | 'busy' | 'warn' | 'bad' | 'idle'

/** Symbols that distinguish tones without colour. */
export const GLYPHS: Record<Tone, string> = { good: '✓', busy: '◔', warn: '!', bad: '✗', idle: '–' }

const STATES: Record<Tone, string> = {
  good: 'Running Ready Active Bound Available Healthy Complete Completed Succeeded Successful True Applied Scheduled Synced Established Accepted Approved Issued Deployed Online Normal Kept',
  busy: 'Pending SchedulingGated ContainerCreating PodInitializing Progressing Terminating Waiting Scheduling Updating Deploying Creating Deleting Removing Draining Evicting Rescheduling Released',
  warn: 'Unknown Warning SchedulingDisabled Suspended Paused Degraded Doubted Stale Stalled Unscheduled Drifted',
  bad: 'Failed False NotReady Unhealthy Lost Evicted OOMKilled Unschedulable Unavailable DeadlineExceeded NodeLost NodeAffinity NodeShutdown NodePorts HostPortConflict Terminated Shutdown Preempted Preempting ContainerCannotRun ContainerStatusUnknown UnexpectedAdmissionError ErrImageNeverPull InvalidImageName CreateContainerConfigError PostStartHookError PodOSNotSupported Denied Offline Conflicting',
  idle: 'Deleted Disabled None Retain',
}

const TONES = new Map(Object.entries(STATES).flatMap(([tone, states]) => states.split(' ').map((state) => [state, tone as Tone] as const)))

/** Failures that are not in the table: `CrashLoopBackOff`, `ErrImagePull`, `OutOfcpu`, `SysctlForbidden`, `ExitCode:1`, `Signal:9`. */
const FAILURE_PATTERN = /BackOff|Error|^Err|^OutOf|Fail|Forbidden|Invalid|^ExitCode:|^Signal:|Kill|Exceeded|Mismatch/
const WORST_FIRST: Tone[] = ['bad', 'warn', 'busy', 'good', 'idle']

/** The tone of a state as kubectl prints it. */
export function toneOf(state: string | undefined): Tone {
  if (state === undefined || state === '') return 'idle'
  const tone = TONES.get(state)
  if (tone) return tone
  // A node prints `Ready,SchedulingDisabled`; the worst part counts.
  if (state.includes(',')) {
    const tones = state.split(',').map((part) => toneOf(part.trim()))
    return WORST_FIRST.find((tone) => tones.includes(tone)) ?? 'idle'
  }
  // Init containers: `Init:1/2` is progress, `Init:Error` is a failure.
  if (/^Init:\d+\/\d+$/.test(state)) return 'busy'
  if (state.startsWith('Init:')) return toneOf(state.slice('Init:'.length))
  if (FAILURE_PATTERN.test(state)) return 'bad'
  return /ing$/.test(state) ? 'busy' : 'idle'
}

/** The tone of a ready count such as `2/3`. */
export function toneOfReady(ready: string | undefined): Tone {
  const [readyCount, total] = (ready ?? '').split('/')
  if (total === undefined) return 'idle'
  return readyCount === total ? (total === '0' ? 'idle' : 'good') : readyCount === '0' ? 'bad' : 'warn'
}

/** State of a container: `running`, `waiting` or `terminated`. */
export interface ContainerState {
  name: string
  reason: string
  exitCode?: number | undefined
  ready: boolean
  init: boolean
}

/** The tone of a container by the state that kubectl prints for it. A running container that is not ready needs attention; an init container is in progress. */
export function toneOfContainer({ name, reason, exitCode, ready, init }: ContainerState): Tone {
  if (name === 'running') return ready ? toneOf('Running') : init ? 'busy' : 'warn'
  if (name === 'waiting') return toneOf(reason || 'Waiting')
  if (name === 'terminated') return exitCode === 0 ? toneOf('Completed') : toneOf(`ExitCode:${exitCode ?? ''}`)
  return 'idle'
}

/** The tone of a condition's status that should be True. */
export const toneOfReadiness = (status: string): Tone => (status === 'True' ? 'good' : status === 'False' ? 'bad' : 'warn')
