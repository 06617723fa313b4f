import { expect, it } from 'vitest'
import { partOf } from './paths'

it.each([
  ['/', 'home'],
  ['/search', 'search'],
  ['/object', 'object'],
  ['/saved', 'saved'],
  ['/fleet', 'fleet'],
  ['/fleet/events', 'fleet'],
  ['/cluster/member1', 'fleet'],
  ['/steer', 'propagation'],
  ['/steer/quotas', 'propagation'],
  ['/why', 'propagation'],
  ['/paths', 'analysis'],
  ['/who-can', 'analysis'],
  ['/assistants', 'analysis'],
  ['/plan', 'propagation'],
  // Not the first view of the section.
  ['/steer/nonsense', undefined],
  ['/fleet/nonsense', undefined],
  ['/cluster/', undefined],
  ['/cluster/a/b', undefined],
  ['/objects', undefined],
  ['/nosuchpage', undefined],
])('%s belongs to %s', (path, section) => expect(partOf(path)).toBe(section))
