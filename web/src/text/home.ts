// Texts of the home page.
import type { Locale } from '../prefs'

const en = {
  allReady: (clusters: number) => (clusters === 1 ? 'The cluster is ready, and nothing needs attention.' : `All ${clusters} clusters are ready, and nothing needs attention.`),
  notReady: (down: number, all: number) => (down === 1 ? `1 of ${all} clusters is not ready.` : `${down} of ${all} clusters are not ready.`),
  needAttention: (n: number) => (n === 1 ? 'All clusters are ready; 1 problem needs attention.' : `All clusters are ready; ${n} problems need attention.`),
  allAcknowledged: (n: number) => (n === 1 ? 'All clusters are ready; 1 problem is acknowledged.' : `All clusters are ready; ${n} problems are acknowledged.`),
  atLeast: 'At least that, because the result is incomplete. Missing or outdated clusters:',
  noClusters: 'There are no clusters that you may see.',
  noClustersYet: 'The fleet has no clusters yet.',
  join: 'Join a cluster',
  attention: 'Needs attention',
  acknowledge: 'Acknowledge',
  undo: 'Undo',
  actionFor: (action: string, problem: string) => `${action}: ${problem}`,
  acknowledged: (age: string) => `acknowledged by you ${age} ago`,
  trend: (values: string) => `Over the last hour: ${values}`,
  clusters: 'Clusters',
  allClusters: (n: number) => `All ${n.toLocaleString('en')} clusters`,
  changes: 'Recent changes',
  changed: (age: string) => `changed ${age} ago`,
  rollouts: 'Rollouts in progress',
  updated: (n: number, all: number) => `${n} of ${all} updated`,
  none: { changes: 'No workload has changed in the last hour.', rollouts: 'No rollout is in progress.' },
}

const zh: typeof en = {
  allReady: (clusters) => `全部 ${clusters} 个集群就绪，没有需要处理的问题。`,
  notReady: (down, all) => `${all} 个集群中有 ${down} 个未就绪。`,
  needAttention: (n) => `所有集群就绪；有 ${n} 个问题需要处理。`,
  allAcknowledged: (n) => `所有集群就绪；${n} 个问题已确认。`,
  atLeast: '至少如此，因为结果不完整。缺失或过时的集群：',
  noClusters: '没有您可以查看的集群。',
  noClustersYet: '舰队中还没有集群。',
  join: '加入集群',
  attention: '需要处理',
  acknowledge: '确认',
  undo: '撤销',
  actionFor: (action, problem) => `${action}：${problem}`,
  acknowledged: (age) => `您已于 ${age} 前确认`,
  trend: (values) => `最近一小时：${values}`,
  clusters: '集群',
  allClusters: (n) => `全部 ${n} 个集群`,
  changes: '最近的变更',
  changed: (age) => `${age} 前变更`,
  rollouts: '正在进行的滚动更新',
  updated: (n, all) => `已更新 ${n}/${all}`,
  none: { changes: '最近一小时没有工作负载变更。', rollouts: '没有正在进行的滚动更新。' },
}

export const homeText: Record<Locale, typeof en> = { en, 'zh-CN': zh }
