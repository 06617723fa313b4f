import { expect, test } from 'vitest'
import type { LogLine } from './logBuffer'
import { volumeBars } from './volume'

const source = { cluster: 'm1', namespace: 'shop', pod: 'web-0', container: 'web' }
const line = (nth: number, second: number | undefined, text = 'fine'): LogLine => ({
  sequence: nth,
  time: second === undefined ? undefined : new Date(1_767_225_600_000 + second * 1_000).toISOString(),
  text,
  truncated: false,
  source,
})
const lineList = (...lines: LogLine[]) => ({ length: lines.length, at: (index: number) => lines[index] })

test('lines are counted over time, by level', () => {
  const lines = [line(0, 0), line(1, 1, 'level=error'), line(2, undefined, '  at main.go'), line(3, 5, '[warn] slow'), line(4, 10)]
  const bars = volumeBars(lineList(...lines), 4)
  expect(bars.map(({ lines, errors, warnings }) => [lines, errors, warnings])).toEqual([
    [3, 1, 0],
    [0, 0, 0],
    [1, 0, 1],
    [1, 0, 0],
  ])
  expect(bars.map(({ first }) => first?.sequence)).toEqual([0, undefined, 3, 4])
  expect(bars.map(({ from }) => from - bars[0]!.from)).toEqual([0, 2_500, 5_000, 7_500])
})

test.each([
  ['no lines', lineList()],
  ['one time', lineList(line(0, 1), line(1, 1))],
  ['no times', lineList(line(0, undefined), line(1, undefined))],
])('%s have no bars', (_, lines) => expect(volumeBars(lines)).toEqual([]))
