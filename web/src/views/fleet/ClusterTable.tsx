// Table of the fleet's clusters, optionally in groups.
import { useLocation, useSearch as useParameters } from 'wouter'
import { viewErrorOf } from '../../api/client'
import { readClusterLabelKeys, readClusterLabels } from '../../api/clusterLabels'
import { RESOURCES, type ClusterSummary, type Resource, type ResourceUsage } from '../../api/clusters'
import { isCordoned } from '../../api/karmada'
import { formatQuantity } from '../../api/quantity'
import type { ClusterStatus } from '../../api/types'
import { Bar } from '../../parts/Bar'
import { ClusterLink } from '../../parts/ClusterLink'
import { FavouriteCluster } from '../../parts/FavouriteCluster'
import { formatNumber } from '../../parts/format'
import { Options } from '../../parts/Options'
import { Pill } from '../../parts/Pill'
import { ErrorMessage, usePolledQuery } from '../../parts/polledQuery'
import { toneOfReadiness } from '../../parts/status'
import { Table } from '../../parts/Table'
import { favouritesFirst, toggled, usePrefs } from '../../prefs'
import { useTextOf } from '../../text'
import { fleetText } from '../../text/fleet'
import { groupAddress, groupClusters, labelKeyOf, parseGrouping, readGroupView, GROUPED_PROPERTIES, type ClusterGroup, type GroupView } from './clusterGroups'
import { DataAge } from './DataAge'

/** Interval of requests for the label keys, which rarely change, in milliseconds. */
const LABEL_KEYS_INTERVAL_MS = 60_000
const NO_LABELS: ReadonlyMap<string, string> = new Map()

interface ClusterTableProps {
  statuses: ClusterStatus[]
  /** Summaries by cluster. */
  clusters: ReadonlyMap<string, ClusterSummary>
}

/** All clusters, grouped as the address says. */
export function ClusterTable({ statuses, clusters }: ClusterTableProps) {
  const t = useTextOf(fleetText)
  const [, navigate] = useLocation()
  const view = readGroupView(useParameters())
  const { favouriteClusters } = usePrefs()
  const key = labelKeyOf(view.by)
  const labels = usePolledQuery(['cluster labels', key], (signal) => readClusterLabels(key ?? '', signal), 10_000, key !== undefined)
  // The previous data is that of another label.
  const values = key === undefined ? NO_LABELS : labels.isPlaceholderData ? undefined : labels.data
  const sorted = favouritesFirst(statuses, favouriteClusters, ({ name }) => name)
  const groups = view.by !== undefined && values ? groupClusters(sorted, view.by, values) : undefined
  const show = (changed: Partial<GroupView>) => navigate(groupAddress({ ...view, ...changed }), { replace: true })
  const rows = (statuses: ClusterStatus[]) => statuses.map((status) => <ClusterRow key={status.name} status={status} cluster={clusters.get(status.name)} />)
  return (
    <>
      <GroupChooser view={view} groups={groups} onChange={show} />
      <ErrorMessage error={key === undefined ? undefined : viewErrorOf(labels.error)} />
      <Table label={t.clusters} headers={t.clusterHeaders} grouped={groups !== undefined}>
        {groups
          ? groups.map((group) => {
              const isCollapsed = view.collapsed.includes(group.value)
              return (
                <tbody key={group.value} data-group={group.value}>
                  <GroupHeader group={group} isCollapsed={isCollapsed} onToggle={() => show({ collapsed: toggled(view.collapsed, group.value) })} />
                  {!isCollapsed && rows(group.clusters)}
                </tbody>
              )
            })
          : rows(sorted)}
      </Table>
    </>
  )
}

interface GroupChooserProps {
  view: GroupView
  /** Absent if the clusters are not grouped. */
  groups: ClusterGroup[] | undefined
  onChange: (changed: Partial<GroupView>) => void
}

/** Selects the property or label by which the clusters are grouped, and collapses or expands all groups. */
function GroupChooser({ view, groups, onChange }: GroupChooserProps) {
  const t = useTextOf(fleetText)
  const labelKeys = usePolledQuery(['cluster label keys'], readClusterLabelKeys, LABEL_KEYS_INTERVAL_MS).data ?? []
  const chosenKey = labelKeyOf(view.by)
  const keys = chosenKey === undefined || labelKeys.includes(chosenKey) ? labelKeys : [...labelKeys, chosenKey]
  const isAnyCollapsed = groups?.some(({ value }) => view.collapsed.includes(value)) ?? false
  return (
    <p className="acts">
      <label>
        {t.groupBy}{' '}
        <select value={view.by ?? ''} onChange={(event) => onChange({ by: parseGrouping(event.target.value), collapsed: [] })}>
          <option value="">{t.notGrouped}</option>
          <Options values={GROUPED_PROPERTIES} labels={t.groupings} />
          {keys.map((key) => (
            <option key={key} value={`label:${key}`}>
              {t.byLabel(key)}
            </option>
          ))}
        </select>
      </label>
      {groups && (
        <button type="button" onClick={() => onChange({ collapsed: isAnyCollapsed ? [] : groups.map(({ value }) => value) })}>
          {isAnyCollapsed ? t.expandAll : t.collapseAll}
        </button>
      )}
    </p>
  )
}

/** Heading of a group, with the number of its clusters and their worst state. */
function GroupHeader({ group: { value, clusters, ready, worst }, isCollapsed, onToggle }: { group: ClusterGroup; isCollapsed: boolean; onToggle: () => void }) {
  const t = useTextOf(fleetText)
  return (
    <tr className="group">
      <th scope="rowgroup" colSpan={t.clusterHeaders.length}>
        <button type="button" className="quiet" aria-expanded={!isCollapsed} onClick={onToggle}>
          <span aria-hidden="true">{isCollapsed ? '▸' : '▾'}</span> {value || t.noGroup}
        </button>{' '}
        <Pill state={worst} tone={toneOfReadiness(worst)} text={t.readyLabels[worst] ?? worst} /> <span className="why">{t.ready(ready, clusters.length)}</span>
      </th>
    </tr>
  )
}

function ClusterRow({ status, cluster }: { status: ClusterStatus; cluster: ClusterSummary | undefined }) {
  const t = useTextOf(fleetText)
  const taints = cluster?.taints ?? []
  const location = [status.provider, status.region, ...(status.zones ?? [])].filter(Boolean).join(' · ')
  return (
    <tr data-cluster={status.name}>
      <th scope="row">
        <span className="with-star">
          <ClusterLink name={status.name} />
          <FavouriteCluster name={status.name} />
        </span>
      </th>
      <td>
        <Pill state={status.ready} tone={toneOfReadiness(status.ready)} text={t.readyLabels[status.ready] ?? status.ready} title={status.message} />
        {status.ready !== 'True' && status.message && <small> {status.message}</small>}
      </td>
      <td>{status.version}</td>
      <td>{status.mode}</td>
      <td className="location" title={location}>
        {location}
      </td>
      <td className="number">{status.nodes ? `${status.nodes.ready}/${status.nodes.total}` : ''}</td>
      {RESOURCES.map((resource) => (
        <td key={resource}>
          <UsageBar label={`${t[resource]}, ${status.name}`} usage={cluster?.usage[resource]} resource={resource} />
        </td>
      ))}
      <td className="number">{formatNumber(status.objects)}</td>
      <td>
        {cluster?.isBeingDeleted && <span className="chip">{t.leaving}</span>}
        {isCordoned(taints) && <span className="chip">{t.cordoned}</span>}
        {taints.filter((taint) => !isCordoned([taint])).map(({ key, effect }) => (
          <span key={`${key}:${effect}`} className="chip">
            {key}:{effect}
          </span>
        ))}
      </td>
      <td>
        <DataAge seconds={status.ageSeconds} />
      </td>
    </tr>
  )
}

function UsageBar({ label, usage, resource }: { label: string; usage: ResourceUsage | undefined; resource: Resource }) {
  const t = useTextOf(fleetText)
  if (!usage) return null
  return <Bar label={label} used={usage.used} total={usage.total} text={t.usedOf(formatQuantity(resource, usage.used), formatQuantity(resource, usage.total))} />
}
