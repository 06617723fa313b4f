import { expect, it } from 'vitest'
import { GLYPHS, toneOf, toneOfContainer, toneOfReady } from './status'

it.each([
  ['Running', 'good'],
  ['Completed', 'good'],
  ['Pending', 'busy'],
  ['Terminating', 'busy'],
  ['Init:0/2', 'busy'],
  ['Provisioning', 'busy'],
  ['Unknown', 'warn'],
  ['Ready,SchedulingDisabled', 'warn'],
  ['NotReady,SchedulingDisabled', 'bad'],
  ['CrashLoopBackOff', 'bad'],
  ['Init:CrashLoopBackOff', 'bad'],
  ['ErrImagePull', 'bad'],
  ['ImagePullBackOff', 'bad'],
  ['CreateContainerConfigError', 'bad'],
  ['ErrImageNeverPull', 'bad'],
  ['InvalidImageName', 'bad'],
  ['PostStartHookError', 'bad'],
  ['ContainerStatusUnknown', 'bad'],
  ['UnexpectedAdmissionError', 'bad'],
  ['NodeAffinity', 'bad'],
  ['Evicted', 'bad'],
  ['Preempting', 'bad'],
  ['OutOfcpu', 'bad'],
  ['OutOfmemory', 'bad'],
  ['OutOfpods', 'bad'],
  ['SchedulingGated', 'busy'],
  ['OOMKilled', 'bad'],
  ['ExitCode:137', 'bad'],
  ['Error', 'bad'],
  ['False', 'bad'],
  ['ClusterIP', 'idle'],
  ['', 'idle'],
  [undefined, 'idle'],
] as const)('%s is %s', (state, tone) => expect(toneOf(state)).toBe(tone))

it.each([
  ['3/3', 'good'],
  ['2/3', 'warn'],
  ['0/3', 'bad'],
  ['0/0', 'idle'],
  [undefined, 'idle'],
  ['3', 'idle'],
] as const)('ready %s is %s', (ready, tone) => expect(toneOfReady(ready)).toBe(tone))

it.each([
  [{ name: 'running', reason: '', ready: true, init: false }, 'good'],
  [{ name: 'running', reason: '', ready: false, init: false }, 'warn'],
  [{ name: 'running', reason: '', ready: false, init: true }, 'busy'],
  [{ name: 'waiting', reason: 'ContainerCreating', ready: false, init: false }, 'busy'],
  [{ name: 'waiting', reason: '', ready: false, init: false }, 'busy'],
  [{ name: 'waiting', reason: 'CrashLoopBackOff', ready: false, init: false }, 'bad'],
  [{ name: 'terminated', reason: 'Completed', exitCode: 0, ready: false, init: false }, 'good'],
  [{ name: 'terminated', reason: 'OOMKilled', exitCode: 137, ready: false, init: false }, 'bad'],
  [{ name: 'terminated', reason: '', exitCode: 1, ready: false, init: false }, 'bad'],
  [{ name: '', reason: '', ready: false, init: false }, 'idle'],
] as const)('a container %j is %s', (state, tone) => expect(toneOfContainer(state)).toBe(tone))

it('tones have different glyphs', () => expect(new Set(Object.values(GLYPHS)).size).toBe(5))
