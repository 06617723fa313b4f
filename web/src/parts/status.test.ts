import { expect, it } from 'vitest'
import { GLYPHS, toneOf, toneOfReady } from './status'

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

it('tones have different glyphs', () => expect(new Set(Object.values(GLYPHS)).size).toBe(5))
