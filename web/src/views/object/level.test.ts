import { expect, it } from 'vitest'
import { splitByText, levelOf } from './level'

it.each([
  ['{"level":"error","msg":"no route"}', 'bad'],
  ['time=10:00 level=warn msg="slow"', 'warn'],
  ['{"severity": "DEBUG"}', 'idle'],
  ['E0801 10:00:00.000000 1 main.go:1] failed', 'bad'],
  ['I0801 10:00:00.000000 1 main.go:1] started', undefined],
  ['2026-08-01T10:00:00Z ERROR cannot connect', 'bad'],
  ['2026/08/01 10:00:00 [warn] upstream is slow', 'warn'],
  ['the error page was requested', undefined],
  ['GET /errors 200', undefined],
  ['', undefined],
])('%s is %s', (line, tone) => expect(levelOf(line)).toBe(tone))

it.each([
  ['a Timeout, timeout', 'timeout', ['a ', '*Timeout', ', ', '*timeout']],
  ['nothing', 'x', ['nothing']],
  ['nothing', undefined, ['nothing']],
  ['xx', 'x', ['*x', '*x']],
])('%s is split at %s', (line, text, pieces) => expect(splitByText(line, text).map(({ text, hit }) => `${hit ? '*' : ''}${text}`)).toEqual(pieces))
