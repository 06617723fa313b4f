// Texts of the time of results.
import type { Locale } from '../prefs'

const en = {
  time: (now: string) => `Time: ${now}`,
  anyTime: 'any',
  spans: { '15m': 'last 15 minutes', '1h': 'last hour', '6h': 'last 6 hours', '24h': 'last 24 hours' },
  range: 'a range',
  atTime: (time: string) => `at ${time}`,
  asOf: 'As it was at',
  from: 'From',
  to: 'to',
  fromHint: '2026-08-01T10:00',
  toHint: 'now',
  invalidTime: 'A time is 2026-08-01T10:00 (UTC), 10:05 or now-2h; the first one is earlier.',
  atHint: 'now-2h',
  show: 'Show',
  showRange: 'Show the range',
  overTime: (total: string) => `Results over time: ${total}`,
  bar: (from: string, to: string, count: string) => `${from} to ${to}: ${count}`,
  brushHint: 'Drag, or Shift and arrow keys, to select a time',
}

const zh: typeof en = {
  time: (now) => `时间：${now}`,
  anyTime: '任意',
  spans: { '15m': '最近 15 分钟', '1h': '最近 1 小时', '6h': '最近 6 小时', '24h': '最近 24 小时' },
  range: '一个范围',
  atTime: (time) => `在 ${time}`,
  asOf: '当时的样子',
  from: '从',
  to: '至',
  fromHint: '2026-08-01T10:00',
  toHint: 'now',
  invalidTime: '时间的格式为 2026-08-01T10:00（UTC）、10:05 或 now-2h；前者须早于后者。',
  atHint: 'now-2h',
  show: '显示',
  showRange: '显示此范围',
  overTime: (total) => `结果随时间的分布：${total}`,
  bar: (from, to, count) => `${from} 至 ${to}：${count}`,
  brushHint: '拖动，或用 Shift 加方向键选择时间',
}

export const resultsText: Record<Locale, typeof en> = { en, 'zh-CN': zh }
