// Page of one cluster: health, capacity, pending objects, and actions.
import { useQueryClient } from '@tanstack/react-query'
import { useState } from 'react'
import { Link, useLocation } from 'wouter'
import { objectAddress, searchAddress, writeAddress } from '../../api/address'
import { ApiError, CONTROL_PLANE, qualifiedName, type ObjectRef } from '../../api/client'
import { TAINT_EFFECTS, isCordoned, UNSCHEDULABLE, type Cluster, type Taint } from '../../api/karmada'
import { countObjects, getObject, patchObject } from '../../api/kube'
import { totalUsage } from '../../api/nodeMetrics'
import type { ClusterStatus } from '../../api/types'
import { useFleet } from '../../api/useFleet'
import { useCanI } from '../../api/useCanI'
import { QueryResult, ErrorMessage, usePolledQuery } from '../../parts/polledQuery'
import { Bar } from '../../parts/Bar'
import { ClusterName } from '../../parts/ClusterName'
import { ClusterNotice } from '../../parts/ClusterNotice'
import { ConditionCells } from '../../parts/ConditionCells'
import { FavouriteCluster } from '../../parts/FavouriteCluster'
import { ActionButton } from '../../parts/ActionButton'
import { FormDialog } from '../../parts/FormDialog'
import { formatNumber, formatAgeSince } from '../../parts/format'
import { Modal } from '../../parts/Modal'
import { Pill } from '../../parts/Pill'
import { parseQuantity, formatQuantity } from '../../api/quantity'
import { toneOfReadiness } from '../../parts/status'
import { Table } from '../../parts/Table'
import { useTextOf } from '../../text'
import { fleetText, type FleetText } from '../../text/fleet'
import { journalText } from '../../text/journal'
import { EventTable } from './Events'
import { NodeHeatmap } from './NodeHeatmap'
import { useNodeMetrics } from './useNodeMetrics'
import { useNodeRequests } from './useNodeRequests'
import { NodeTable } from './Nodes'
import { DataAge } from './DataAge'

const refOf = (name: string): ObjectRef => ({ cluster: CONTROL_PLANE, apiVersion: 'cluster.karmada.io/v1alpha1', resource: 'clusters', name })

const DRAIN_TAINT: Taint = { key: 'drained', effect: 'NoExecute' }

/** Address of the preview for a change or the deletion of a Cluster. */
const planAddress = (name: string, parameters: Record<string, unknown> = {}) =>
  `/plan${writeAddress({ apiVersion: 'cluster.karmada.io/v1alpha1', kind: 'Cluster', name, ...parameters })}`

/** Address of a preview in which the cluster is unreachable. */
const lossAddress = (name: string) => planAddress(name, { lost: true })

/** Address of a preview in which a NoExecute taint evicts all workloads that do not tolerate it; undefined if the draft is too long for an address. */
async function drainPreviewAddress(cluster: Cluster): Promise<string | undefined> {
  const [{ toFragment }, { withoutServerFields }, { printYaml }] = await Promise.all([import('../../api/draft'), import('../../parts/manifest'), import('../../parts/yaml')])
  const draft = withoutServerFields({ ...cluster, spec: { ...cluster.spec, taints: [...(cluster.spec.taints ?? []), DRAIN_TAINT] } }, { version: true })
  const fragment = await toFragment(printYaml(draft))
  return fragment === undefined ? undefined : `${planAddress(cluster.metadata.name, { drained: true })}#${fragment}`
}

export function ClusterPage({ name }: { name: string }) {
  const t = useTextOf(fleetText)
  const journal = useTextOf(journalText)
  const cluster = usePolledQuery(['cluster', name], (signal) => getObject<Cluster>(refOf(name), signal), 3_000)
  const requests = useNodeRequests(name)
  const { fleet } = useFleet()
  const status = fleet?.clusters.find((cluster) => cluster.name === name)
  const isHidden = cluster.error instanceof ApiError && cluster.error.code !== 404
  return (
    <>
      <div className="with-star">
        <h1>
          <ClusterName name={name} />
        </h1>
        <FavouriteCluster name={name} />
      </div>
      <ClusterNotice cluster={name} />
      {fleet && !status && !cluster.data && <p role="alert">{t.unknownCluster(name)}</p>}
      {isHidden && <ErrorMessage error={cluster.error} />}
      <StatusSummary status={status} cluster={cluster.data} />
      <Actions name={name} cluster={cluster.data} onDone={() => void cluster.refetch()} />
      {cluster.data && <ClusterDetails cluster={cluster.data} />}
      <PendingCounts name={name} />
      <h2>{t.nodes}</h2>
      <NodeHeatmap name={name} cluster={cluster.data} requests={requests} />
      <NodeTable q={`cluster:${name}`} requests={requests} />
      <h2>{t.recentEvents}</h2>
      <p>
        <Link href={objectAddress(refOf(name), 'journal')}>{journal.title}</Link>
      </p>
      <EventTable q={`kind:event (cluster:${name} OR about:cluster/${name})`} live limit={25} />
      <Queries name={name} />
    </>
  )
}

function StatusSummary({ status, cluster }: { status: ClusterStatus | undefined; cluster: Cluster | undefined }) {
  const t = useTextOf(fleetText)
  if (!status) return null
  const location = [status.provider, status.region, ...(status.zones ?? [])].filter(Boolean).join(' · ')
  return (
    <p>
      <Pill state={status.ready} tone={toneOfReadiness(status.ready)} text={t.readyLabels[status.ready] ?? status.ready} />
      {status.message && ` · ${status.message}`} · {status.version} · {status.mode}
      {location && ` · ${location}`}
      {status.nodes && ` · ${t.nodesReady(status.nodes.ready, status.nodes.total)}`} · {t.freshness} <DataAge seconds={status.ageSeconds} />
      {cluster?.spec.apiEndpoint && (
        <>
          {' '}
          · {t.endpoint} <code>{cluster.spec.apiEndpoint}</code>
        </>
      )}
    </p>
  )
}

function Actions({ name, cluster, onDone }: { name: string; cluster: Cluster | undefined; onDone: () => void }) {
  const t = useTextOf(fleetText)
  const [, navigate] = useLocation()
  const client = useQueryClient()
  const [openDialog, setOpenDialog] = useState<'cordon' | 'taints'>()
  const [failure, setFailure] = useState<{ error?: unknown; text?: string }>({})
  const attributes = { cluster: CONTROL_PLANE, group: 'cluster.karmada.io', resource: 'clusters', name }
  const mayPatch = useCanI({ ...attributes, verb: 'patch' })
  const mayDelete = useCanI({ ...attributes, verb: 'delete' })
  const patchDisabledReason = mayPatch && cluster ? undefined : t.mayNotPatch(name)
  const closeAfterChange = () => {
    setOpenDialog(undefined)
    onDone()
  }
  const previewDrain = (cluster: Cluster) =>
    drainPreviewAddress(cluster).then(
      (address) => (address === undefined ? setFailure({ text: t.drainTooLong }) : navigate(address)),
      (error: unknown) => setFailure({ error }),
    )
  return (
    <div className="acts">
      <ActionButton disabledReason={patchDisabledReason} onClick={() => setOpenDialog('cordon')}>
        {isCordoned(cluster?.spec.taints) ? t.uncordon : t.cordon}
      </ActionButton>
      <ActionButton disabledReason={patchDisabledReason} onClick={() => setOpenDialog('taints')}>
        {t.editTaints}
      </ActionButton>
      {cluster && <Link href={planAddress(name)}>{t.whatIf}</Link>}
      {cluster && (
        <button type="button" onClick={() => void previewDrain(cluster)}>
          {t.whatIfDrained}
        </button>
      )}
      {cluster && <Link href={lossAddress(name)}>{t.whatIfLost}</Link>}
      {mayDelete && cluster ? <Link href={planAddress(name, { delete: true })}>{t.unjoin}</Link> : <ActionButton disabledReason={t.mayNotDelete(name)}>{t.unjoin}</ActionButton>}
      <Link href={objectAddress(refOf(name))}>{t.object}</Link>
      <button type="button" onClick={() => void client.invalidateQueries()}>
        {t.refresh}
      </button>
      <ErrorMessage error={failure.error} />
      {failure.text !== undefined && <p role="alert">{failure.text}</p>}
      {openDialog === 'cordon' && cluster && <Cordon cluster={cluster} onDone={closeAfterChange} onClose={() => setOpenDialog(undefined)} />}
      {openDialog === 'taints' && cluster && <Taints cluster={cluster} onDone={closeAfterChange} onClose={() => setOpenDialog(undefined)} />}
    </div>
  )
}

/**
 * Replaces the taints of a Cluster, unless they have changed since they were read (409). Changes of other fields, such as the status, cause
 * no conflict.
 */
async function writeTaints(cluster: Cluster, taints: Taint[], attempts = 3): Promise<void> {
  const { name } = cluster.metadata
  const now = await getObject<Cluster>(refOf(name))
  const { resourceVersion } = JSON.stringify(now.spec.taints ?? []) === JSON.stringify(cluster.spec.taints ?? []) ? now.metadata : cluster.metadata
  try {
    await patchObject(refOf(name), { metadata: { resourceVersion }, spec: { taints: taints.length > 0 ? taints : null } })
  } catch (error) {
    const canRetry = error instanceof ApiError && error.code === 409 && resourceVersion === now.metadata.resourceVersion && attempts > 1
    if (!canRetry) throw error
    await writeTaints(cluster, taints, attempts - 1)
  }
}

interface DialogProps {
  cluster: Cluster
  onDone: () => void
  onClose: () => void
}

function Cordon({ cluster, onDone, onClose }: DialogProps) {
  const t = useTextOf(fleetText)
  const [error, setError] = useState<unknown>()
  const { name } = cluster.metadata
  const taints = cluster.spec.taints ?? []
  const isAlreadyCordoned = isCordoned(taints)
  const label = isAlreadyCordoned ? t.confirmUncordon(name) : t.confirmCordon(name)
  const run = () => writeTaints(cluster, isAlreadyCordoned ? taints.filter((taint) => !isCordoned([taint])) : [...taints, UNSCHEDULABLE]).then(onDone, setError)
  return (
    <Modal label={label} onClose={onClose}>
      <p>{label}</p>
      <ErrorMessage error={error} />
      <p className="acts">
        <button type="button" onClick={() => void run()}>
          {isAlreadyCordoned ? t.uncordon : t.cordon}
        </button>
        <button type="button" onClick={onClose}>
          {t.cancel}
        </button>
      </p>
    </Modal>
  )
}

function Taints({ cluster, onDone, onClose }: DialogProps) {
  const t = useTextOf(fleetText)
  const [taints, setTaints] = useState<Taint[]>(cluster.spec.taints ?? [])
  const [error, setError] = useState<unknown>()
  const change = (nth: number, changed: Partial<Taint>) => setTaints(taints.map((taint, index) => (index === nth ? { ...taint, ...changed } : taint)))
  const label = t.taintsOf(cluster.metadata.name)
  return (
    <FormDialog
      title={label}
      buttonsClassName="acts"
      submitButton={<button type="submit" className="primary">{t.save}</button>}
      onSubmit={() => {
        writeTaints(cluster, taints.map(({ value, ...taint }) => ({ ...taint, ...(value && { value }) }))).then(onDone, setError)
      }}
      onClose={onClose}
    >
      {taints.map((taint, nth) => (
        <p key={nth} className="acts">
          <input type="text" aria-label={t.key} placeholder={t.key} required value={taint.key} onChange={(event) => change(nth, { key: event.target.value })} />
          <input type="text" aria-label={t.value} placeholder={t.value} value={taint.value ?? ''} onChange={(event) => change(nth, { value: event.target.value })} />
          <select aria-label={t.effect} value={taint.effect} onChange={(event) => change(nth, { effect: event.target.value })}>
            {TAINT_EFFECTS.map((effect) => (
              <option key={effect}>{effect}</option>
            ))}
          </select>
          <button type="button" aria-label={t.removeTaint(taint.key)} onClick={() => setTaints(taints.filter((_, index) => index !== nth))}>
            −
          </button>
        </p>
      ))}
      <p>
        <button type="button" onClick={() => setTaints([...taints, { key: '', effect: TAINT_EFFECTS[0]! }])}>
          {t.addTaint}
        </button>
      </p>
      <p className="notice">{t.noExecute}</p>
      <ErrorMessage error={error} />
    </FormDialog>
  )
}

/** Conditions, taints, capacity, resource models and APIs of a Cluster. */
function ClusterDetails({ cluster }: { cluster: Cluster }) {
  const t = useTextOf(fleetText)
  const { status, spec } = cluster
  return (
    <>
      <h2>{t.conditions}</h2>
      <Table label={t.conditions} headers={t.conditionHeaders}>
        {(status?.conditions ?? []).map((condition) => (
          <tr key={condition.type} data-condition={condition.type}>
            <th scope="row">{condition.type}</th>
            <td>
              <Pill state={condition.status} tone={toneOfReadiness(condition.status)} />
            </td>
            <ConditionCells condition={condition} />
          </tr>
        ))}
      </Table>
      <h2>{t.taints}</h2>
      {(spec.taints ?? []).length === 0 ? (
        <p className="empty">{t.noTaints}</p>
      ) : (
        <Table label={t.taints} headers={t.taintHeaders}>
          {(spec.taints ?? []).map(({ key, value, effect, timeAdded }) => (
            <tr key={`${key}:${effect}`}>
              <th scope="row">
                <code>
                  {key}
                  {value && `=${value}`}:{effect}
                </code>
              </th>
              <td>{formatAgeSince(timeAdded)}</td>
            </tr>
          ))}
        </Table>
      )}
      <Capacity cluster={cluster} />
      <Models cluster={cluster} />
      <Apis cluster={cluster} />
    </>
  )
}

function Capacity({ cluster }: { cluster: Cluster }) {
  const t = useTextOf(fleetText)
  const { allocatable = {}, allocated = {}, allocating = {} } = cluster.status?.resourceSummary ?? {}
  const resources = Object.keys(allocatable).filter((resource) => parseQuantity(allocatable[resource]) > 0)
  const metrics = useNodeMetrics(cluster)
  const { capacityHeaders: heads } = t
  if (resources.length === 0) return null
  return (
    <>
      <h2>{t.capacity}</h2>
      <Table label={t.capacity} headers={[heads.resource, heads.requested, ...(metrics ? [heads.used] : []), heads.pending]}>
        {resources.map((resource) => {
          const [used, total, pending] = [allocated, allocatable, allocating].map((quantities) => parseQuantity(quantities[resource])) as [number, number, number]
          const measured = metrics && totalUsage(metrics, resource)
          const bar = (label: string, amount: number) => <Bar label={label} used={amount} total={total} text={t.usedOf(formatQuantity(resource, amount), formatQuantity(resource, total))} />
          return (
            <tr key={resource}>
              <th scope="row">{resource}</th>
              <td>{bar(resource, used)}</td>
              {metrics && <td>{measured !== undefined && bar(t.usedResource(resource), measured)}</td>}
              <td>{pending > 0 ? formatQuantity(resource, pending) : ''}</td>
            </tr>
          )
        })}
      </Table>
      <p>
        {t.capacityIfLost}
        <Link href={lossAddress(cluster.metadata.name)}>{t.whatIfLost}</Link>
      </p>
    </>
  )
}

function Models({ cluster }: { cluster: Cluster }) {
  const t = useTextOf(fleetText)
  const models = cluster.spec.resourceModels ?? []
  const counts = new Map((cluster.status?.resourceSummary?.allocatableModelings ?? []).map(({ grade, count }) => [grade, count]))
  return (
    <>
      <h2>{t.models}</h2>
      {models.length === 0 ? (
        <p className="empty">{t.noModels}</p>
      ) : (
        <Table label={t.models} headers={t.modelHeaders}>
          {models.map(({ grade, ranges }) => (
            <tr key={grade}>
              <th scope="row">{grade}</th>
              <td>{counts.get(grade) ?? 0}</td>
              <td>
                {ranges.map(({ name, min, max }) => (
                  <span key={name} className="chip">
                    {name} {min} – {parseQuantity(max) > 1e15 ? '∞' : max}
                  </span>
                ))}
              </td>
            </tr>
          ))}
        </Table>
      )}
    </>
  )
}

function Apis({ cluster }: { cluster: Cluster }) {
  const t = useTextOf(fleetText)
  const [filter, setFilter] = useState('')
  const groups = cluster.status?.apiEnablements ?? []
  const pattern = filter.trim().toLowerCase()
  const matching = groups
    .map(({ groupVersion, resources = [] }) => ({
      groupVersion,
      resources: groupVersion.toLowerCase().includes(pattern) ? resources : resources.filter(({ kind, name }) => `${kind} ${name}`.toLowerCase().includes(pattern)),
    }))
    .filter(({ resources }) => resources.length > 0)
  return (
    <>
      <h2>{t.apis}</h2>
      <details>
        <summary>
          {t.apiCount(
            groups.length,
            groups.reduce((all, { resources = [] }) => all + resources.length, 0),
          )}
        </summary>
        <p className="acts">
          <input type="search" aria-label={t.apiFilter} placeholder={t.apiFilter} value={filter} onChange={(event) => setFilter(event.target.value)} />
        </p>
        <dl className="facts">
          {matching.map(({ groupVersion, resources }) => (
            <div key={groupVersion} className="pair">
              <dt>{groupVersion}</dt>
              <dd>
                {resources.map(({ kind, name }) => (
                  <Link key={name} className="chip" href={searchAddress({ q: `cluster:${cluster.metadata.name} kind:${qualifiedName(kind, groupVersion)}` })}>
                    {kind}
                  </Link>
                ))}
              </dd>
            </div>
          ))}
        </dl>
      </details>
    </>
  )
}

/** Query for the Works in a cluster's execution namespace. */
const worksQuery = (name: string) => `kind:work ns:karmada-es-${name}`

const PENDING_QUERIES: [keyof FleetText['waitingNames'], (name: string) => string][] = [
  ['bindings', (name) => `kind:resourcebinding,clusterresourcebinding on:${name}`],
  ['unapplied', (name) => `${worksQuery(name)} is:drifted`],
  ['suspended', (name) => `${worksQuery(name)} condition:Dispatching=False`],
  ['removing', (name) => `${worksQuery(name)} is:terminating`],
  ['leavingIt', (name) => `kind:resourcebinding,clusterresourcebinding evicting:${name}`],
  ['unhealthy', (name) => `kind:resourcebinding,clusterresourcebinding on:${name} health:Unhealthy`],
]

function PendingCounts({ name }: { name: string }) {
  const t = useTextOf(fleetText)
  const counts = usePolledQuery(['waiting', name], (signal) =>
    Promise.all(PENDING_QUERIES.map(async ([label, query]) => ({ label, q: query(name), total: (await countObjects(query(name), [], signal)).total }))),
  )
  return (
    <>
      <h2>{t.waiting}</h2>
      <QueryResult query={counts}>
        {(all) => (
          <ul className="plain">
            {all.map(({ label, q, total }) => (
              <li key={label}>
                <Link href={searchAddress({ q })}>{t.waitingNames[label]}</Link> <b>{formatNumber(total)}</b>
              </li>
            ))}
          </ul>
        )}
      </QueryResult>
    </>
  )
}

const QUERIES: [keyof FleetText['queryNames'], (name: string) => string][] = [
  ['all', (name) => `cluster:${name}`],
  ['unhealthy', (name) => `cluster:${name} is:unhealthy`],
  ['pods', (name) => `cluster:${name} kind:pod -status:Running,Completed,Succeeded`],
  ['changed', (name) => `cluster:${name} changed:<1h`],
  ['warnings', (name) => `cluster:${name} kind:event type:Warning last:<1h`],
  ['works', worksQuery],
  ['deleted', (name) => `cluster:${name} is:deleted deleted:<1d`],
]

function Queries({ name }: { name: string }) {
  const t = useTextOf(fleetText)
  return (
    <>
      <h2>{t.queries}</h2>
      <ul className="plain">
        {QUERIES.map(([label, query]) => (
          <li key={label}>
            <Link href={searchAddress({ q: query(name) })}>{t.queryNames[label]}</Link>
          </li>
        ))}
      </ul>
    </>
  )
}
