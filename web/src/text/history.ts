// Texts of the history of an object: summaries of changes, and restoring a version.
import type { Locale } from '../prefs'

const en = {
  change: 'Change',
  restarted: 'restarted',
  statusOnly: 'status only',
  noChange: 'no visible change',
  added: (field: string) => `${field} added`,
  removed: (field: string) => `${field} removed`,
  changed: (field: string) => `${field} changed`,
  moreChanges: (n: number) => `and ${n} more`,
  by: (manager: string) => `by ${manager}`,
  summarizeMore: (n: number) => (n === 1 ? 'Summarize 1 more change' : `Summarize ${n} more changes`),
  restore: 'Restore…',
  restoreTitle: (name: string) => `Restore ${name}`,
  restoreEffect: 'Its labels and all fields except metadata and status become those of the version. Nothing is stored before you confirm.',
  recreated: 'The object has been deleted; it is created again.',
  checking: 'Checking with a dry run…',
  accepted: 'The cluster accepts this (dry run).',
  unchanged: 'The object already has this content.',
  restoreIn: (cluster: string) => `Restore in ${cluster}`,
  restored: 'Restored.',
  fields: 'Changes by the restore',
  noSecretValues: 'The cache has no values of Secrets.',
}

export type HistoryText = typeof en

const zh: HistoryText = {
  change: '变更',
  restarted: '已重启',
  statusOnly: '仅状态',
  noChange: '没有可见的变更',
  added: (field) => `新增 ${field}`,
  removed: (field) => `删除 ${field}`,
  changed: (field) => `更改 ${field}`,
  moreChanges: (n) => `另有 ${n} 处`,
  by: (manager) => `由 ${manager}`,
  summarizeMore: (n) => `再概括 ${n} 处变更`,
  restore: '恢复…',
  restoreTitle: (name) => `恢复 ${name}`,
  restoreEffect: '标签以及除 metadata 和 status 以外的所有字段将变为该版本的内容。确认之前不会存储任何内容。',
  recreated: '对象已被删除；将重新创建。',
  checking: '正在进行试运行检查…',
  accepted: '集群会接受此操作（试运行）。',
  unchanged: '对象已是此内容。',
  restoreIn: (cluster) => `在 ${cluster} 中恢复`,
  restored: '已恢复。',
  fields: '恢复带来的更改',
  noSecretValues: '缓存中没有 Secret 的值。',
}

export const historyText: Record<Locale, HistoryText> = { en, 'zh-CN': zh }
