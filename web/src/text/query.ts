// Texts of loading and error states.
import type { Locale } from '../prefs'

const en = {
  loading: 'Loading…',
  server: 'the control plane',
  signInAgain: 'Sign in again',
  signedOut: (why: string) => `Your session has ended (401): ${why}`,
  forbidden: (why: string) => `Forbidden (403): ${why}`,
  notFound: (why: string) => `Not found (404): ${why}`,
  timedOut: (who: string) => `${who} did not respond within 10 seconds. Cached data is still shown.`,
  unreachable: (why: string) => `The server does not respond: ${why}`,
  errorResponse: (who: string, why: string, code: number) => `${who} returned an error: ${why} (${code})`,
  field: 'Field',
  before: 'Before',
  after: 'After',
  showFull: 'Show it in full',
  asTable: 'As a table',
  find: 'Find',
  wrongType: (field: string, expected: string, actual: string) => `${field}: expected ${expected}, got ${actual}`,
  notAllowed: (field: string, allowed: string) => `${field}: supported values are ${allowed}`,
  /** The editor's own texts, where they are not English. */
  editorPhrases: {} as Record<string, string>,
}

const zh: typeof en = {
  loading: '正在加载…',
  server: '控制面',
  signInAgain: '重新登录',
  signedOut: (why) => `您的登录已失效 (401)：${why}`,
  forbidden: (why) => `您无权查看或执行此操作 (403)：${why}`,
  notFound: (why) => `不存在 (404)：${why}`,
  timedOut: (who) => `${who} 在 10 秒内没有响应。仍显示缓存的数据。`,
  unreachable: (why) => `服务器没有响应：${why}`,
  errorResponse: (who, why, code) => `${who} 的回答：${why} (${code})`,
  field: '字段',
  before: '之前',
  after: '之后',
  showFull: '显示全部',
  asTable: '以表格显示',
  find: '查找',
  wrongType: (field, expected, actual) => `${field}：应为 ${expected}，实为 ${actual}`,
  notAllowed: (field, allowed) => `${field}：可用的值为 ${allowed}`,
  editorPhrases: {
    Find: '查找',
    Replace: '替换',
    next: '下一个',
    previous: '上一个',
    all: '全部',
    'match case': '区分大小写',
    regexp: '正则表达式',
    'by word': '全字匹配',
    replace: '替换',
    'replace all': '全部替换',
    close: '关闭',
    'Fold line': '折叠',
    'Unfold line': '展开',
    'folded code': '已折叠',
    unfold: '展开',
    '$ unchanged lines': '$ 行未更改',
  },
}

export const queryText: Record<Locale, typeof en> = { en, 'zh-CN': zh }
