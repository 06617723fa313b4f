// Texts of the journal. Messages of entries are not translated.
import type { Locale } from '../prefs'

const en = {
  title: 'Placement history',
  heads: ['At (UTC)', 'Action', 'Object', 'Message', 'Cause'],
  hint: 'Events of this object and of their causes. The first placement is not recorded.',
  templateHint: 'The placement history belongs to the template. These are the entries of the template of this copy.',
  at: 'Around',
  atHint: '10:05 (UTC), now-2h, 2026-08-01T10:05',
  within: '± range',
  show: 'Show',
  all: 'All entries',
  last: 'Time',
  noEntries: 'There are no entries that you may read.',
  retention: (age: string) => `Kept for ${age}, within limits.`,
  newestOf: (shown: number, all: number) => `These are the newest ${shown} of ${all}.`,
  rootCause: 'root cause',
  unknownCause: 'its cause is not retained, or you may not read it',
  follow: (action: string, object: string) => `Go to ${action}: ${object}`,
  asQuery: 'As a query',
}

const zh: typeof en = {
  title: '放置历史',
  heads: ['时间 (UTC)', '变动', '对象', '说明', '原因'],
  hint: '此对象及其原因的事件。首次放置不会记录。',
  templateHint: '变动记录针对模板：此处显示的是此副本所属模板的记录。',
  at: '时间点',
  atHint: '10:05 (UTC)、now-2h、2026-08-01T10:05',
  within: '前后',
  show: '显示',
  all: '保留的全部记录',
  last: '时间范围',
  noEntries: '在您可以读取的范围内没有变动。',
  retention: (age) => `在限额内保留 ${age}。`,
  newestOf: (shown, all) => `这是 ${all} 条中最新的 ${shown} 条。`,
  rootCause: '没有已知的更早原因',
  unknownCause: '其原因已不再保留，或您无权读取',
  follow: (action, object) => `转到 ${action}：${object}`,
  asQuery: '作为查询',
}

export const journalText: Record<Locale, typeof en> = { en, 'zh-CN': zh }
