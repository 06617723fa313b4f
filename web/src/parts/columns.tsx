// Columns of results: rendering, width, and name in the query language.
import type { ReactNode } from 'react'
import { clusterAddress, objectAddress } from '../api/address'
import { CONTROL_PLANE } from '../api/client'
import type { Hit } from '../api/types'
import type { Text } from '../text'
import { KindIcon } from '../icons/Icon'
import { ClusterName } from './ClusterName'
import { splitByMarks, formatAgeSince } from './format'
import { addressOfColumn, namespaceAddress, nodeAddress } from './mention'
import { Pill } from './Pill'
import { toneOfReady } from './status'
import './mention.css'

/** A column that every hit has. */
export type ColumnName = keyof Text['columnNames']

export interface Column {
  /** A `ColumnName`, or a requested column: `label:KEY`, `print:NAME`, `.spec.replicas`. */
  name: string
  /** Minimum and maximum width in the grid. */
  width: string
  /** Its name in `sort:`; absent: not sortable. */
  sort?: string
  /** Its name in exports, if different. */
  field?: string
  /** `now`: the moment that the result is about, in Unix milliseconds. */
  show: (hit: Hit, now?: number) => ReactNode
  title?: (hit: Hit) => string | undefined
  /** Numbers are right-aligned. */
  number?: boolean
}

const ALL_COLUMNS: Column[] = [
  { name: 'cluster', width: '130px', sort: 'cluster', show: ({ cluster }) => (cluster === CONTROL_PLANE ? <ClusterName name={cluster} /> : <Mention href={clusterAddress(cluster)}><ClusterName name={cluster} /></Mention>), title: (hit) => hit.cluster },
  {
    name: 'kind',
    width: '140px',
    sort: 'kind',
    show: (hit) => (
      <>
        <KindIcon kind={hit.kind} apiVersion={hit.apiVersion} /> {hit.kind}
      </>
    ),
    title: (hit) => hit.kind,
  },
  { name: 'namespace', width: '150px', sort: 'namespace', show: (hit) => hit.namespace && <Mention href={namespaceAddress(hit, hit.namespace)}>{hit.namespace}</Mention> },
  {
    name: 'name',
    width: 'minmax(260px, 3fr)',
    sort: 'name',
    // The grid has the focus and opens the active row: rows are not tab stops.
    show: (hit) => (
      <a href={objectAddress(hit)} tabIndex={-1}>
        <Highlighted hit={hit} field="name" text={hit.name} />
      </a>
    ),
    title: (hit) => hit.name,
  },
  { name: 'status', width: '160px', sort: 'status', show: (hit) => hit.status && <Pill state={hit.status} /> },
  { name: 'ready', width: '80px', sort: 'ready', number: true, show: (hit) => hit.ready && <span className={toneOfReady(hit.ready)}>{hit.ready}</span> },
  { name: 'restarts', width: '90px', sort: 'restarts', number: true, show: (hit) => hit.restarts },
  { name: 'node', width: '160px', sort: 'node', show: (hit) => hit.node && <Mention href={nodeAddress(hit, hit.node)}>{hit.node}</Mention> },
  { name: 'images', width: 'minmax(200px, 1fr)', sort: 'image', show: (hit) => hit.images?.join(' '), title: (hit) => hit.images?.join('\n') },
  { name: 'created', width: '80px', sort: 'age', number: true, show: (hit, now) => formatAgeSince(hit.created, now), title: (hit) => hit.created },
  { name: 'createdAt', width: '180px', sort: 'created', field: 'created', show: (hit) => hit.created },
  { name: 'apiVersion', width: '160px', show: (hit) => hit.apiVersion },
  { name: 'uid', width: '300px', show: (hit) => <code>{hit.uid}</code> },
  {
    name: 'matched',
    width: 'minmax(160px, 1fr)',
    show: (hit) =>
      hit.matched.map(({ field, text }, nth) => (
        <span key={nth} className="why">
          {nth > 0 && ' · '}
          {field}
          {text && ': '}
          {text && <Highlighted hit={hit} field={field} text={text} />}
        </span>
      )),
    title: (hit) => hit.matched.map(({ field, text }) => (text ? `${field}: ${text}` : field)).join('\n'),
  },
]

const BY_NAME = new Map(ALL_COLUMNS.map((column) => [column.name, column]))
export const DEFAULT_COLUMNS: ColumnName[] = ['cluster', 'kind', 'namespace', 'name', 'status', 'ready', 'restarts', 'created', 'matched']

/** A link to another object than that of the row. Rows and their links are not tab stops. */
function Mention({ href, children }: { href: string; children: ReactNode }) {
  return (
    <a href={href} className="mention" tabIndex={-1}>
      {children}
    </a>
  )
}

function Highlighted({ hit, field, text }: { hit: Hit; field: string; text: string }) {
  const reason = hit.matched.find((match) => match.field === field && match.text === text)
  return splitByMarks(text, reason?.marks).map((piece, nth) => (piece.hit ? <mark key={nth}>{piece.text}</mark> : piece.text))
}

/** A column whose values must be requested: of a label, of a column that kubectl prints, or at a path of the manifest. */
function requestedColumn(name: string): Column | undefined {
  if (!isRequestedColumn(name)) return undefined
  const value = (hit: Hit) => hit.columns?.[name]
  const show = (hit: Hit) => {
    const text = value(hit)
    const address = text && addressOfColumn(hit, name, text)
    return address ? <Mention href={address}>{text}</Mention> : text
  }
  return { name, width: 'minmax(120px, 1fr)', show, title: value }
}

/** True for columns that hits contain only if they are requested. */
export const isRequestedColumn = (name: string) => /^(label:|print:|\.)[^,]+$/.test(name)

/** True for columns that apply to one kind only. */
export const isKindSpecific = (name: string) => /^(print:|\.)/.test(name)

/** The label of a column. */
export function titleOf({ name }: Pick<Column, 'name'>, t: Text): string {
  return isRequestedColumn(name) ? name.replace(/^(label|print):/, '') : t.columnNames[name as ColumnName]
}

/** The columns of these names, in order; unknown names are skipped, and an empty list gives the defaults. */
export function findColumns(names: readonly string[] | undefined): Column[] {
  const columns = [...new Set(names)].flatMap((name) => BY_NAME.get(name) ?? requestedColumn(name) ?? [])
  return columns.length > 0 ? columns : DEFAULT_COLUMNS.flatMap((name) => BY_NAME.get(name) ?? [])
}

/** Columns that are not shown. */
export function otherColumns(shown: Column[]): Column[] {
  return ALL_COLUMNS.filter((column) => !shown.includes(column))
}

/** Minimum width of a table in pixels; in less space it scrolls horizontally. */
export function minTableWidth(columns: Column[]): number {
  return columns.reduce((sum, { width }) => sum + Number(/\d+/.exec(width)), 0)
}

/** Moves a name by a number of positions. */
export function moveName(names: readonly string[], name: string, offset: number): string[] {
  const from = names.indexOf(name)
  const to = Math.min(names.length - 1, Math.max(0, from + offset))
  const rest = names.filter((other) => other !== name)
  return from < 0 ? [...names] : [...rest.slice(0, to), name, ...rest.slice(to)]
}

/** Column names for an export; columns that only the page can render are skipped. */
export function exportColumns(columns: Column[]): string[] {
  return [...new Set(columns.filter(({ name }) => name !== 'matched').map(({ name, field }) => field ?? name))]
}
