// Texts of paths, access reviews and the set-up of assistants. Types of edges, kinds and states are those of the API.
import type { Locale } from '../prefs'

const en = {
  views: 'Views of paths and access',
  tabs: { paths: 'Paths', whoCan: 'Who can', assistants: 'Assistants' },

  pathsTitle: 'Paths between objects',
  pathsHint: 'Objects that match a pattern, and how they depend on each other, in all clusters. An object that you may not read is left out.',
  pattern: 'Pattern',
  shortest: 'Only the shortest paths',
  find: 'Find',
  pathExamples: 'Examples',
  pathTree: (pattern: string) => `Paths that match ${pattern}`,
  pathCount: (shown: number, total: number, least: boolean) => (shown < total || least ? `${shown} of ${least ? 'at least ' : ''}${total} paths` : total === 1 ? '1 path' : `${total} paths`),
  noPaths: 'No path matches.',

  whoTitle: 'Who can do something',
  whoHint: 'Subjects that RBAC allows an action, in all clusters, with the binding and the role. Nothing is changed.',
  verb: 'Verb',
  resource: 'Resource, or URL path',
  resourceHint: 'secrets, deployments.apps, pods/exec, /metrics',
  objectName: 'Name (optional)',
  namespace: 'Namespace (all if empty)',
  review: 'Review',
  grantHeads: ['Cluster', 'Subject', 'Namespace', 'Binding', 'Role'],
  grants: 'Grants',
  noGrants: 'No grant that you may see.',
  moreGrants: (n: number) => `${n} more are not shown.`,
  rbacOnly: 'By RBAC only: other authorizers of a cluster may allow more.',

  assistantsTitle: 'Connect an assistant',
  assistantsHint: 'Crowsnest is a server of the Model Context Protocol. Its tools only read, with your own permissions. What an assistant reads leaves your network if its model runs elsewhere.',
  byCommand: 'Claude Code',
  byFile: 'Claude Code and Cursor (.mcp.json, .cursor/mcp.json)',
  byVsCode: 'VS Code (.vscode/mcp.json)',
  byHttp: 'Over HTTP, with a bearer token',
}

const zh: typeof en = {
  views: '路径和访问权限的视图',
  tabs: { paths: '路径', whoCan: '谁有权限', assistants: 'AI 助手' },

  pathsTitle: '对象之间的路径',
  pathsHint: '所有集群中与模式匹配的对象及其依赖关系。您无权读取的对象不会显示。',
  pattern: '模式',
  shortest: '仅最短路径',
  find: '查找',
  pathExamples: '示例',
  pathTree: (pattern) => `与 ${pattern} 匹配的路径`,
  pathCount: (shown, total, least) => (shown < total || least ? `${least ? '至少 ' : ''}${total} 条路径中的 ${shown} 条` : `${total} 条路径`),
  noPaths: '没有匹配的路径。',

  whoTitle: '谁可以执行操作',
  whoHint: '所有集群中 RBAC 允许执行操作的主体，及其绑定和角色。不会更改任何内容。',
  verb: '动词',
  resource: '资源或 URL 路径',
  resourceHint: '例如 secrets、deployments.apps、pods/exec、/metrics',
  objectName: '名称（可选）',
  namespace: '命名空间（留空表示全部）',
  review: '查询',
  grantHeads: ['集群', '主体', '命名空间', '绑定', '角色'],
  grants: '授权',
  noGrants: '没有您可以查看的授权。',
  moreGrants: (n) => `另有 ${n} 条未显示。`,
  rbacOnly: '仅基于 RBAC：集群的其他授权器可能允许更多。',

  assistantsTitle: '连接 AI 助手',
  assistantsHint: 'Crowsnest 是 Model Context Protocol 服务器。其工具只读，并使用您自己的权限。如果助手的模型在别处运行，它读取的内容会离开您的网络。',
  byCommand: '用于 Claude Code',
  byFile: '用于 Claude Code 和 Cursor（.mcp.json、.cursor/mcp.json）',
  byVsCode: '用于 VS Code（.vscode/mcp.json）',
  byHttp: '通过 HTTP，使用 Bearer 令牌',
}

export const analysisText: Record<Locale, typeof en> = { en, 'zh-CN': zh }
