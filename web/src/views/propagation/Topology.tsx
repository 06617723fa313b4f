// Topology tab: the policy, binding, clusters, Works, objects and pods of a template as a live tree.
import { useQueries } from '@tanstack/react-query'
import { Link } from 'wouter'
import { clusterAddress, objectAddress, searchAddress, writeAddress } from '../../api/address'
import { ApiError, CONTROL_PLANE, getJson } from '../../api/client'
import { countObjects } from '../../api/kube'
import { policyAddress, type Explanation, type PolicyName, type Template } from '../../api/propagation'
import { API } from '../../api/searchApi'
import { QueryResult } from '../../parts/polledQuery'
import { ClusterName } from '../../parts/ClusterName'
import { useTextOf } from '../../text'
import { propagationText } from '../../text/propagation'
import { copiesQuery } from '../object/objects'
import type { SummarizedObject } from '../object/ObjectSummary'
import { useViewParameters } from '../object/state'
import { filterClusters, groupClusters, onlyProblems } from './treeReduction'
import { TreeDrawing } from './TreeDrawing'
import { buildMemberTree, buildTree, memberPodsQuery, type MemberGraph, type PodCounts, type TreeNode } from './tree'
import './propagation.css'
import { useExplanation } from './PlacementExplanation'

/** Maximum number of clusters expanded by default. */
const MAX_OPEN_CLUSTERS = 6
/** Maximum number of buttons that expand clusters; others are found by name. */
const MAX_BUTTONS = 24
/** Maximum number of clusters named in a query. */
const MAX_NAMED_CLUSTERS = 50

export function Topology({ template }: { template: Template }) {
  return <QueryResult query={useExplanation(template)}>{(explanation) => <TopologyTree explanation={explanation} template={template} />}</QueryResult>
}

function TopologyTree({ explanation, template }: { explanation: Explanation; template: Template }) {
  const t = useTextOf(propagationText)
  // Clusters with problems first.
  const order = [...explanation.targets].sort((a, b) => Number(a.applied && a.health !== 'Unhealthy') - Number(b.applied && b.health !== 'Unhealthy'))
  const [view, change] = useViewParameters()
  const openClusters = new Set(view.open === undefined ? order.slice(0, MAX_OPEN_CLUSTERS).map(({ cluster }) => cluster) : view.open.split(','))
  const isOpen = (cluster: string) => openClusters.has(cluster)
  const open = explanation.targets.map(({ cluster }) => cluster).filter(isOpen)
  const toggle = (cluster: string) => change({ open: (isOpen(cluster) ? open.filter((other) => other !== cluster) : [...open, cluster]).join() })
  const members = useMemberTrees(template, open)
  const nameFilter = view.find ?? ''
  const fullTree = buildTree(explanation, members.trees)
  const query = (clusters: string[]) => `${copiesQuery(template)} cluster:${clusters.slice(0, MAX_NAMED_CLUSTERS).join()}`
  const tree = groupClusters(view.only === 'problems' ? onlyProblems(fullTree) : fullTree, isOpen, query)
  const buttons = filterClusters(order.map(({ cluster }) => cluster), nameFilter, MAX_BUTTONS)
  return (
    <>
      <p className="acts">
        <label>
          <input type="checkbox" checked={view.only === 'problems'} onChange={(event) => change({ only: event.target.checked ? 'problems' : undefined })} /> {t.onlyProblems}
        </label>
        {explanation.targets.length > MAX_BUTTONS && (
          <input type="search" aria-label={t.findCluster} placeholder={t.findCluster} value={nameFilter} onChange={(event) => change({ find: event.target.value || undefined })} />
        )}
      </p>
      {explanation.targets.length > 1 && (
        <p className="acts">
          {buttons.shown.map((cluster) => (
            <button key={cluster} type="button" aria-pressed={isOpen(cluster)} aria-label={`${isOpen(cluster) ? t.hideMembers : t.showMembers} ${cluster}`} onClick={() => toggle(cluster)}>
              <ClusterName name={cluster} />
            </button>
          ))}
          {buttons.more > 0 && <span className="notice">{t.moreClusters(buttons.more)}</span>}
        </p>
      )}
      <TreeDrawing
        roots={[tree]}
        label={t.tree(template.name)}
        objectOf={(node) => objectOf(node, template)}
        addressOf={(node) => addressOf(node, template)}
        shownId={view.shown}
        onShow={(shown) => change({ shown })}
      />
      {members.incomplete.map(({ cluster, shown, pods }) => (
        <p key={cluster} className="notice">
          {t.graphIncomplete(cluster, shown)}{' '}
          {pods && pods.total > 0 && <Link href={searchAddress({ q: `${pods.query} sort:-restarts` })}>{t.podsCounted(pods.total)}</Link>}
        </p>
      ))}
      {members.missing.map((cluster) => (
        <p key={cluster} className="notice">
          {t.graphMissing(cluster)}
        </p>
      ))}
      {open.length < explanation.targets.length && <p className="notice">{t.notShown(explanation.targets.length - open.length)}</p>}
    </>
  )
}

/** The template's objects in members, from the cache, so that an unresponsive member does not delay the page. */
function useMemberTrees(template: Template, clusters: string[]) {
  const queries = useQueries({
    queries: clusters.map((cluster) => ({
      queryKey: ['graph', cluster, template],
      queryFn: ({ signal }: { signal: AbortSignal }) => getJson<MemberGraph>(`${API}/graph${writeAddress({ cluster, ...template, depth: 3 })}`, signal),
      refetchInterval: 3_000,
      retry: (failures: number, error: Error) => failures < 1 && !(error instanceof ApiError && error.code < 500),
    })),
  })
  const isRoot = ({ resource, name, apiVersion }: { resource: string; name: string; apiVersion: string }) =>
    resource === template.resource && name === template.name && apiVersion.replace(/\/.*/, '') === template.apiVersion.replace(/\/.*/, '')
  // A graph has a maximum number of objects. The pods of a larger one are counted.
  const counts = useQueries({
    queries: clusters.map((cluster, nth) => ({
      queryKey: ['pods of graph', cluster, template],
      queryFn: async ({ signal }: { signal: AbortSignal }): Promise<PodCounts> => {
        const query = memberPodsQuery(template, cluster)
        const { total, facets } = await countObjects(query, ['status'], signal)
        return { query, total, states: facets.status ?? [] }
      },
      enabled: queries[nth]?.data?.more === true,
      refetchInterval: 3_000,
    })),
  })
  const trees = new Map<string, TreeNode | undefined>()
  const incomplete: { cluster: string; shown: number; pods: PodCounts | undefined }[] = []
  clusters.forEach((cluster, nth) => {
    const graph = queries[nth]?.data
    const pods = graph?.more ? counts[nth]?.data : undefined
    trees.set(cluster, graph && buildMemberTree(graph, isRoot, pods))
    if (graph?.more) incomplete.push({ cluster, shown: graph.nodes.length, pods })
  })
  return { trees, incomplete, missing: clusters.filter((_, nth) => queries[nth]?.error) }
}

const refOfPolicy = ({ kind, namespace }: PolicyName) => ({
  apiVersion: 'policy.karmada.io/v1alpha1',
  resource: kind === 'PropagationPolicy' ? 'propagationpolicies' : 'clusterpropagationpolicies',
  namespace,
})

/** The object of a node; a group has none. */
function objectOf(node: TreeNode, template: Template): SummarizedObject | undefined {
  const { kind, name } = node
  const base = { cluster: CONTROL_PLANE, kind, name }
  if (node.query) return undefined
  if (node.policy) return { ...base, ...refOfPolicy(node.policy) }
  if (node.work) return { ...base, apiVersion: node.work.apiVersion, resource: 'works', namespace: node.work.namespace }
  if (node.object) return node.object
  if (kind === 'Cluster') return { ...base, apiVersion: 'cluster.karmada.io/v1alpha1', resource: 'clusters' }
  if (node.id === 'template') return { ...base, ...template }
  return node.id === 'binding' ? { ...base, apiVersion: 'work.karmada.io/v1alpha2', resource: `${kind.toLowerCase()}s`, namespace: template.namespace } : undefined
}

function addressOf(node: TreeNode, template: Template): string | undefined {
  if (node.query) return searchAddress({ q: node.query })
  if (node.kind === 'Cluster') return clusterAddress(node.name)
  if (node.policy) return policyAddress(node.policy)
  const object = objectOf(node, template)
  return object && objectAddress(object)
}
