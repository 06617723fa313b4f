// Default columns of results of one kind: the fields that matter most for it. Pure.
import { chosen, named } from '../api/query'
import type { Hit } from '../api/types'
import { columnsNamed, DEFAULT_COLUMNS, isAsked, type Column } from './columns'

const WORKLOAD = ['cluster', 'namespace', 'name', 'status', 'ready', 'images', 'created']
const NAMED = ['cluster', 'namespace', 'name']

const OF_KIND: Record<string, readonly string[]> = {
  Pod: ['cluster', 'namespace', 'name', 'status', 'ready', 'restarts', 'node', 'created'],
  Deployment: WORKLOAD,
  StatefulSet: WORKLOAD,
  DaemonSet: WORKLOAD,
  ReplicaSet: WORKLOAD,
  Job: [...NAMED, 'status', 'print:Completions', 'print:Duration', 'images', 'created'],
  CronJob: [...NAMED, 'print:Schedule', 'print:Suspend', 'print:Active', 'print:Last Schedule', 'created'],
  Service: [...NAMED, 'print:Type', 'print:Cluster-IP', 'print:External-IP', 'print:Port(s)', 'created'],
  Ingress: [...NAMED, 'print:Class', 'print:Hosts', 'print:Address', 'created'],
  ConfigMap: [...NAMED, 'print:Data', 'created'],
  Secret: [...NAMED, 'print:Type', 'print:Data', 'created'],
  PersistentVolumeClaim: [...NAMED, 'status', 'print:Volume', 'print:Capacity', 'print:StorageClass', 'created'],
  Namespace: ['cluster', 'name', 'status', 'created'],
  Node: ['cluster', 'name', 'status', 'print:Roles', 'print:Version', 'print:Internal-IP', 'created'],
  Event: ['cluster', 'namespace', 'print:Type', 'print:Reason', 'print:Object', 'print:Message', 'name', 'created'],
  HorizontalPodAutoscaler: [...NAMED, 'print:Reference', 'print:Targets', 'print:MinPods', 'print:MaxPods', 'print:Replicas', 'created'],
}
const KINDS = Object.keys(OF_KIND)
/** Values of `kind:` that stand for several kinds. */
const GROUPS = new Set(['workload', 'workloads', 'all'])
/** Number of printed columns of a kind without an entry of its own. */
const MOST_PRINTED = 5
const ALREADY = /^print:(Name|Age|Ready|Status|Restarts|Node|Namespace)$/

/** The only kind that a query asks for; undefined: several or any. A kind of the table has its proper name. */
export function kindOf(q: string): string | undefined {
  const [only, ...others] = named(q, 'kind')
  if (only === undefined || others.length > 0 || !/^[\w.-]+$/.test(only) || GROUPS.has(only.toLowerCase())) return undefined
  if (chosen(q, 'kind', only) !== 'asked') return undefined
  return KINDS.find((kind) => chosen(q, 'kind', kind) === 'asked') ?? only.toLowerCase()
}

/** Names of the default columns; `hits` are those of the first page, with all printed columns. */
export function defaultsOf(kind: string | undefined, hits: readonly Hit[]): readonly string[] {
  if (kind === undefined) return DEFAULT_COLUMNS
  const own = OF_KIND[kind]
  if (own) return [...own, 'matched']
  const printed = [...new Set(hits.flatMap(({ columns }) => Object.keys(columns ?? {})))].filter((name) => !ALREADY.test(name))
  return [...NAMED, 'status', 'ready', ...printed.slice(0, MOST_PRINTED), 'created', 'matched']
}

/** On a narrow screen, the most telling columns come first. */
export function narrowed(names: readonly string[]): string[] {
  const first = ['name', 'status', 'ready'].filter((name) => names.includes(name))
  return [...first, ...names.filter((name) => !first.includes(name))]
}

const isEmpty = (shown: unknown) => shown === undefined || shown === null || shown === '' || (Array.isArray(shown) && shown.length === 0)

/** Columns with a value in at least one hit; all of them while there are no hits. */
export function withoutEmpty(columns: Column[], hits: readonly Hit[]): Column[] {
  if (hits.length === 0) return columns
  return columns.filter(({ name, show }) => name === 'name' || hits.some((hit) => !isEmpty(show(hit))))
}

/** Requested columns whose values are all numbers. */
export function numbers(names: readonly string[], hits: readonly Hit[]): string[] {
  return names.filter((name) => {
    if (!isAsked(name)) return false
    const values = hits.flatMap(({ columns }) => columns?.[name] ?? [])
    return values.length > 0 && values.every((value) => /^\d+(\.\d+)?$/.test(value))
  })
}

/** The shown columns of a result: the chosen ones, or the defaults of its kind that are not empty. */
export function shownColumns(chosenNames: readonly string[] | undefined, kind: string | undefined, hits: readonly Hit[], narrow: boolean): string[] {
  if (chosenNames) return columnsNamed(chosenNames).map(({ name }) => name)
  const names = defaultsOf(kind, hits)
  return withoutEmpty(columnsNamed(narrow ? narrowed(names) : names), hits).map(({ name }) => name)
}
