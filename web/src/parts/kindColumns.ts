// Default columns of results with one kind: the fields that matter most for it. Has no side effects.
import type { SearchView } from '../api/address'
import { isKindName } from '../api/kinds'
import { selectionOf, fieldValues, quote, termsOf } from '../api/query'
import type { Hit } from '../api/types'
import { findColumns, DEFAULT_COLUMNS, isRequestedColumn, type Column } from './columns'

const WORKLOAD_COLUMNS = ['cluster', 'namespace', 'name', 'status', 'ready', 'images', 'created']
const NAME_COLUMNS = ['cluster', 'namespace', 'name']

const COLUMNS_BY_KIND: Record<string, readonly string[]> = {
  Pod: ['cluster', 'namespace', 'name', 'status', 'ready', 'restarts', 'node', 'created'],
  Deployment: WORKLOAD_COLUMNS,
  StatefulSet: WORKLOAD_COLUMNS,
  DaemonSet: WORKLOAD_COLUMNS,
  ReplicaSet: WORKLOAD_COLUMNS,
  Job: [...NAME_COLUMNS, 'status', 'print:Completions', 'print:Duration', 'images', 'created'],
  CronJob: [...NAME_COLUMNS, 'print:Schedule', 'print:Suspend', 'print:Active', 'print:Last Schedule', 'created'],
  Service: [...NAME_COLUMNS, 'print:Type', 'print:Cluster-IP', 'print:External-IP', 'print:Port(s)', 'created'],
  Ingress: [...NAME_COLUMNS, 'print:Class', 'print:Hosts', 'print:Address', 'created'],
  ConfigMap: [...NAME_COLUMNS, 'print:Data', 'created'],
  Secret: [...NAME_COLUMNS, 'print:Type', 'print:Data', 'created'],
  PersistentVolumeClaim: [...NAME_COLUMNS, 'status', 'print:Volume', 'print:Capacity', 'print:StorageClass', 'created'],
  Namespace: ['cluster', 'name', 'status', 'created'],
  Node: ['cluster', 'name', 'status', 'print:Roles', 'print:Version', 'print:Internal-IP', 'created'],
  Event: ['cluster', 'namespace', 'print:Type', 'print:Reason', 'print:Object', 'print:Message', 'name', 'created'],
  HorizontalPodAutoscaler: [...NAME_COLUMNS, 'print:Reference', 'print:Targets', 'print:MinPods', 'print:MaxPods', 'print:Replicas', 'created'],
}
const KINDS = Object.keys(COLUMNS_BY_KIND)
/** API groups of the kinds in the table; kinds that are not listed are in the core group. */
const GROUPS_BY_KIND: Record<string, readonly string[]> = {
  Deployment: ['apps'],
  StatefulSet: ['apps'],
  DaemonSet: ['apps'],
  ReplicaSet: ['apps'],
  Job: ['batch'],
  CronJob: ['batch'],
  Ingress: ['networking.k8s.io', 'extensions'],
  Event: ['events.k8s.io'],
  HorizontalPodAutoscaler: ['autoscaling'],
}
/** Values of `kind:` that match several kinds. */
const KIND_GROUPS = new Set(['workload', 'workloads', 'all'])
/** Maximum number of printed columns for a kind that is not in the table. */
const MAX_PRINTED_COLUMNS = 5
/** Printed columns that duplicate columns of every hit. */
const STANDARD_COLUMNS = /^print:(Name|Age|Ready|Status|Restarts|Node|Namespace)$/

/** The only kind that a query matches, in CamelCase if it is in the table; undefined for several or any kinds. */
export function onlyKindOf(q: string): string | undefined {
  const [only, ...others] = fieldValues(q, 'kind')
  if (only === undefined || others.length > 0 || !/^[\w.-]+$/.test(only) || KIND_GROUPS.has(only.toLowerCase())) return undefined
  if (selectionOf(q, 'kind', only) !== 'included') return undefined
  return KINDS.find((kind) => isBuiltIn(only, kind)) ?? only.toLowerCase()
}

/** True if a value of `kind:` names a kind of the table: without a group, or with one of its groups. */
function isBuiltIn(word: string, kind: string): boolean {
  const names = word.includes('.') ? (GROUPS_BY_KIND[kind] ?? []).map((group) => `${kind}.${group}`) : [kind]
  return names.some((name) => isKindName(word, name, false))
}

/** The view of another query: columns, and a wide table, are those of the kind for which they were chosen. */
export function viewOfQuery(view: SearchView, q: string): SearchView {
  // Called for each key: without own columns, no query is parsed.
  const hasTable = view.columns !== undefined || view.wide !== undefined
  return !hasTable || onlyKindOf(q) === onlyKindOf(view.q) ? { ...view, q } : { ...view, q, columns: undefined, wide: undefined }
}

/** Query for all objects of the only kind that a query matches, in the same groups and versions; undefined for several or any kinds. */
export function kindQueryOf(q: string): string | undefined {
  const kind = onlyKindOf(q)
  if (kind === undefined) return undefined
  const written = fieldValues(q, 'kind')[0]
  return [`kind:${quote(written?.includes('.') ? written.toLowerCase() : kind)}`, ...termsOf(q, ['apiVersion', 'group'])].join(' ')
}

/** Names of the default columns for a kind; the printed columns of other kinds are taken from `hits`, the first page. */
export function defaultColumnNames(kind: string | undefined, hits: readonly Hit[]): readonly string[] {
  if (kind === undefined) return DEFAULT_COLUMNS
  const ownColumns = COLUMNS_BY_KIND[kind]
  if (ownColumns) return [...ownColumns, 'matched']
  const printed = [...new Set(hits.flatMap(({ columns }) => Object.keys(columns ?? {})))].filter((name) => !STANDARD_COLUMNS.test(name))
  return [...NAME_COLUMNS, 'status', 'ready', ...printed.slice(0, MAX_PRINTED_COLUMNS), 'created', 'matched']
}

/**
 * Columns that are requested with a query's hits. If the user has chosen no columns for the kind, all printed columns are requested as soon as
 * one of them may be shown. For a kind that is not in the table, the shown columns depend on their values. `widePaths` is set for a wide table:
 * the JSON paths of the columns that the kind's CustomResourceDefinition prints.
 */
export function requestedColumnNames(chosenNames: readonly string[] | undefined, kind: string | undefined, widePaths?: readonly string[]): string[] {
  if (kind !== undefined && widePaths) return [...new Set([...requestedColumnNames(chosenNames, kind), 'print:*', ...widePaths])].sort()
  if (chosenNames) return findColumns(chosenNames).map(({ name }) => name).filter(isRequestedColumn).sort()
  if (kind === undefined) return []
  return COLUMNS_BY_KIND[kind]?.some(isRequestedColumn) === false ? [] : ['print:*']
}

/** Column names for a narrow screen: name, status and readiness first. */
export function namesForNarrowScreen(names: readonly string[]): string[] {
  const first = ['name', 'status', 'ready'].filter((name) => names.includes(name))
  return [...first, ...names.filter((name) => !first.includes(name))]
}

const isEmpty = (value: unknown) => value === undefined || value === null || value === '' || (Array.isArray(value) && value.length === 0)

/** Columns with a value in at least one hit; all of them while there are no hits. */
export function withoutEmpty(columns: Column[], hits: readonly Hit[]): Column[] {
  if (hits.length === 0) return columns
  return columns.filter(({ name, show }) => name === 'name' || hits.some((hit) => !isEmpty(show(hit))))
}

/** Names of requested columns whose values are all numbers. */
export function numericColumns(names: readonly string[], hits: readonly Hit[]): string[] {
  return names.filter((name) => {
    if (!isRequestedColumn(name)) return false
    const values = hits.flatMap(({ columns }) => columns?.[name] ?? [])
    return values.length > 0 && values.every((value) => /^\d+(\.\d+)?$/.test(value))
  })
}

/**
 * Names of the columns that a wide table adds to the shown ones: the printed columns of hits, and the JSON paths of a CustomResourceDefinition.
 * Empty columns and those that duplicate a shown one are omitted.
 */
export function wideColumns(shown: readonly string[], hits: readonly Hit[], widePaths: readonly string[]): string[] {
  const printed = hits.flatMap(({ columns }) => Object.keys(columns ?? {})).filter((name) => name.startsWith('print:'))
  const isDuplicate = (name: string) => shown.includes(name) || STANDARD_COLUMNS.test(name) || (name === 'print:Images' && shown.includes('images'))
  const hasValue = (name: string) => hits.some(({ columns }) => !isEmpty(columns?.[name]) && columns?.[name] !== '<none>')
  return [...new Set([...printed, ...widePaths])].filter((name) => !isDuplicate(name) && hasValue(name))
}

/** Names of the shown columns of a result: the chosen ones, or the defaults of its kind that are not empty. */
export function shownColumns(chosenNames: readonly string[] | undefined, kind: string | undefined, hits: readonly Hit[], narrow: boolean): string[] {
  if (chosenNames) return findColumns(chosenNames).map(({ name }) => name)
  const names = defaultColumnNames(kind, hits)
  return withoutEmpty(findColumns(narrow ? namesForNarrowScreen(names) : names), hits).map(({ name }) => name)
}
