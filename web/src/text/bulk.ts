// Texts of actions on several results.
import type { Locale } from '../prefs'

export type BulkAction = 'restart' | 'delete'

const en = {
  selected: (n: number) => (n === 1 ? '1 result selected' : `${n} results selected`),
  clear: 'Clear the selection',
  start: { restart: 'Restart…', delete: 'Delete…' } as Record<BulkAction, string>,
  title: { restart: (n: number) => (n === 1 ? 'Restart 1 workload' : `Restart ${n} workloads`), delete: (n: number) => (n === 1 ? 'Delete 1 object' : `Delete ${n} objects`) },
  notRestartable: 'Only Deployments, StatefulSets and DaemonSets can be restarted.',
  tooMany: (most: number) => `At most ${most} objects at once.`,
  heads: ['Object', 'Cluster', 'Namespace', 'Result'],
  checking: 'checking (dry run)',
  accepted: 'accepted (dry run)',
  waiting: 'waiting',
  running: 'in progress',
  notStarted: 'not started',
  done: 'done',
  copies: 'Copies of a template are reverted: restart the template in the control plane instead.',
  refusedCount: (n: number) => (n === 1 ? '1 object was refused and is left out.' : `${n} objects were refused and are left out.`),
  typeCount: (n: number) => `Type ${n} to confirm`,
  typeFirst: 'Type the number of objects first.',
  dryRunRunning: 'The dry run is in progress.',
  noneAccepted: 'No object was accepted.',
  run: { restart: 'Restart', delete: 'Delete' } as Record<BulkAction, string>,
  cancel: 'Cancel',
  stop: 'Stop',
  stopping: 'Requests in progress are being completed.',
  stoppedEarly: (n: number) => (n === 1 ? 'Stopped: 1 object was not changed.' : `Stopped: ${n} objects were not changed.`),
  close: 'Close',
}

const zh: typeof en = {
  selected: (n) => `已选择 ${n} 个结果`,
  clear: '清除选择',
  start: { restart: '重启…', delete: '删除…' },
  title: { restart: (n) => `重启 ${n} 个工作负载`, delete: (n) => `删除 ${n} 个对象` },
  notRestartable: '只能重启 Deployment、StatefulSet 和 DaemonSet。',
  tooMany: (most) => `一次最多 ${most} 个对象。`,
  heads: ['对象', '集群', '命名空间', '结果'],
  checking: '正在检查（试运行）',
  accepted: '已接受（试运行）',
  waiting: '等待中',
  running: '正在进行',
  notStarted: '未开始',
  done: '完成',
  copies: '模板的副本会被还原：请改为重启控制面中的模板。',
  refusedCount: (n) => `${n} 个对象被拒绝，不会执行。`,
  typeCount: (n) => `输入 ${n} 以确认`,
  typeFirst: '请先输入对象的数量。',
  dryRunRunning: '试运行正在进行。',
  noneAccepted: '没有被接受的对象。',
  run: { restart: '重启', delete: '删除' },
  cancel: '取消',
  stop: '停止',
  stopping: '正在完成进行中的请求。',
  stoppedEarly: (n) => `已停止：${n} 个对象未更改。`,
  close: '关闭',
}

export const bulkText: Record<Locale, typeof en> = { en, 'zh-CN': zh }
