import { expect, it } from 'vitest'
import { sectionOf } from './sections'

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
  // Unknown paths do not belong to the section of their prefix.
  ['/steer/nonsense', undefined],
  ['/fleet/nonsense', undefined],
  ['/cluster/', undefined],
  ['/cluster/a/b', undefined],
  ['/objects', undefined],
  ['/nosuchpage', undefined],
])('%s belongs to %s', (path, section) => expect(sectionOf(path)).toBe(section))
