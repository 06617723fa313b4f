// The topology of a template: binding, clusters, objects and pods, live. An accessible tree.
import { useState } from 'react'
import { useQueries } from '@tanstack/react-query'
import { clusterAddress, objectAddress, searchAddress, writeAddress } from '../../api/address'
import { ApiError, CONTROL_PLANE, getJson } from '../../api/client'
import { policyAddress, type Explanation, type PolicyName, type Template } from '../../api/propagation'
import { API } from '../../api/useSearch'
import { QueryResult } from '../../parts/polledQuery'
import { ClusterName } from '../../parts/ClusterName'
import { useTextOf } from '../../text'
import { propagationText } from '../../text/propagation'
import { copiesOf } from '../object/objects'
import type { SummarizedObject } from '../object/ObjectSummary'
import { useView } from '../object/state'
import { clustersNamed, gathered, onlyProblems } from './shape'
import { TreeDrawing } from './TreeDrawing'
import { owned, treeOf, type MemberGraph, type TreeNode } from './tree'
import './propagation.css'
import { useExplanation } from './Why'

/** Number of clusters expanded by default; others are expanded on selection. */
const OPEN = 6
/** Buttons that expand clusters; with more clusters, they are found by name. */
const MOST_BUTTONS = 24
/** Clusters named in a query. */
const MOST_NAMED = 50

export function Topology({ template }: { template: Template }) {
  return <QueryResult of={useExplanation(template)}>{(told) => <Shown told={told} template={template} />}</QueryResult>
}

function Shown({ told, template }: { told: Explanation; template: Template }) {
  const t = useTextOf(propagationText)
  // Clusters with problems first.
  const order = [...told.targets].sort((a, b) => Number(a.applied && a.health !== 'Unhealthy') - Number(b.applied && b.health !== 'Unhealthy'))
  const [chosen, setChosen] = useState<Record<string, boolean>>({})
  const byThemselves = new Set(order.slice(0, OPEN).map(({ cluster }) => cluster))
  const isOpen = (cluster: string) => chosen[cluster] ?? byThemselves.has(cluster)
  const open = told.targets.map(({ cluster }) => cluster).filter(isOpen)
  const members = useMembers(template, open)
  const [view, change] = useView()
  const [named, setNamed] = useState('')
  const whole = treeOf(told, members.found)
  const query = (clusters: string[]) => `${copiesOf(template)} cluster:${clusters.slice(0, MOST_NAMED).join()}`
  const tree = gathered(view.only === 'problems' ? onlyProblems(whole) : whole, isOpen, query)
  const buttons = clustersNamed(order.map(({ cluster }) => cluster), named, MOST_BUTTONS)
  return (
    <>
      <p className="acts">
        <label>
          <input type="checkbox" checked={view.only === 'problems'} onChange={(event) => change({ only: event.target.checked ? 'problems' : undefined })} /> {t.onlyProblems}
        </label>
        {told.targets.length > MOST_BUTTONS && (
          <input type="search" aria-label={t.findCluster} placeholder={t.findCluster} value={named} onChange={(event) => setNamed(event.target.value)} />
        )}
      </p>
      {told.targets.length > 1 && (
        <p className="acts">
          {buttons.shown.map((cluster) => (
            <button key={cluster} type="button" aria-pressed={isOpen(cluster)} aria-label={`${isOpen(cluster) ? t.hideMembers : t.showMembers} ${cluster}`} onClick={() => setChosen({ ...chosen, [cluster]: !isOpen(cluster) })}>
              <ClusterName name={cluster} />
            </button>
          ))}
          {buttons.more > 0 && <span className="notice">{t.moreClusters(buttons.more)}</span>}
        </p>
      )}
      <TreeDrawing roots={[tree]} label={t.tree(template.name)} objectOf={(node) => objectOf(node, template)} addressOf={(node) => addressOf(node, template)} />
      {members.missing.map((cluster) => (
        <p key={cluster} className="notice">
          {t.graphMissing(cluster)}
        </p>
      ))}
      {open.length < told.targets.length && <p className="notice">{t.notShown(told.targets.length - open.length)}</p>}
    </>
  )
}

/** The template's objects in members, from the cache, so that an unresponsive member does not delay the page. */
function useMembers(template: Template, clusters: string[]) {
  const asked = useQueries({
    queries: clusters.map((cluster) => ({
      queryKey: ['graph', cluster, template],
      queryFn: ({ signal }: { signal: AbortSignal }) => getJson<MemberGraph>(`${API}/graph${writeAddress({ cluster, ...template, depth: 3 })}`, signal),
      refetchInterval: 3_000,
      retry: (failures: number, error: Error) => failures < 1 && !(error instanceof ApiError && error.code < 500),
    })),
  })
  const isRoot = ({ resource, name, apiVersion }: { resource: string; name: string; apiVersion: string }) =>
    resource === template.resource && name === template.name && apiVersion.replace(/\/.*/, '') === template.apiVersion.replace(/\/.*/, '')
  const found = new Map<string, TreeNode | undefined>()
  clusters.forEach((cluster, nth) => found.set(cluster, asked[nth]?.data && owned(asked[nth].data, isRoot)))
  return { found, missing: clusters.filter((_, nth) => asked[nth]?.error) }
}

const refOfPolicy = ({ kind, namespace }: PolicyName) => ({
  apiVersion: 'policy.karmada.io/v1alpha1',
  resource: kind === 'PropagationPolicy' ? 'propagationpolicies' : 'clusterpropagationpolicies',
  namespace,
})

/** The object of a node; a group has none. */
function objectOf(node: TreeNode, template: Template): SummarizedObject | undefined {
  const { kind, name } = node
  const here = { cluster: CONTROL_PLANE, kind, name }
  if (node.query) return undefined
  if (node.policy) return { ...here, ...refOfPolicy(node.policy) }
  if (node.object) return node.object
  if (kind === 'Cluster') return { ...here, apiVersion: 'cluster.karmada.io/v1alpha1', resource: 'clusters' }
  if (node.id === 'template') return { ...here, ...template }
  return node.id === 'binding' ? { ...here, apiVersion: 'work.karmada.io/v1alpha2', resource: `${kind.toLowerCase()}s`, namespace: template.namespace } : undefined
}

function addressOf(node: TreeNode, template: Template): string | undefined {
  if (node.query) return searchAddress({ q: node.query })
  if (node.kind === 'Cluster') return clusterAddress(node.name)
  if (node.policy) return policyAddress(node.policy)
  const object = objectOf(node, template)
  return object && objectAddress(object)
}
