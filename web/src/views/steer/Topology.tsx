// The topology of a template: binding, clusters, objects and pods, live. An accessible tree.
import { useRef, useState, type KeyboardEvent } from 'react'
import { useQueries } from '@tanstack/react-query'
import { useLocation } from 'wouter'
import { clusterAddress, objectAddress, searchAddress, writeAddress } from '../../api/address'
import { ApiError, CONTROL_PLANE, getJson } from '../../api/client'
import { policyAddress, type Explanation, type PolicyName, type Template } from '../../api/propagation'
import { API } from '../../api/useSearch'
import { Answer } from '../../parts/Asking'
import { ClusterMark, ClusterName } from '../../parts/ClusterName'
import { useTextOf } from '../../text'
import { steerText } from '../../text/steer'
import { copiesOf } from '../object/Header'
import { Short, type ShortOf } from '../object/Short'
import { useView } from '../object/state'
import { clustersNamed, gathered, problemsOf } from './shape'
import { layout, owned, stepTo, treeOf, type MemberGraph, type Placed, type TreeNode } from './tree'
import './steer.css'
import { useExplanation } from './Why'

/** Number of clusters expanded by default; others are expanded on selection. */
const OPEN = 6
/** Buttons that expand clusters; with more clusters, they are found by name. */
const MOST_BUTTONS = 24
/** Clusters named in a query. */
const MOST_NAMED = 50
const COLUMN = 230
const ROW = 44
const WIDTH = 200
const HEIGHT = 34
/** Characters that fit a node. */
const LETTERS = 26

export function Topology({ template }: { template: Template }) {
  return <Answer of={useExplanation(template)}>{(told) => <Shown told={told} template={template} />}</Answer>
}

function Shown({ told, template }: { told: Explanation; template: Template }) {
  const t = useTextOf(steerText)
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
  const query = (clusters: string[]) => `${copiesOf({ cluster: CONTROL_PLANE, ...template })} cluster:${clusters.slice(0, MOST_NAMED).join()}`
  const tree = gathered(view.only === 'problems' ? problemsOf(whole) : whole, isOpen, query)
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
      <Tree root={tree} label={t.tree(template.name)} template={template} />
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
function objectOf(node: TreeNode, template: Template): ShortOf | undefined {
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

const SIGNS = { good: '✓', bad: '✗', unknown: '·' }

function Tree({ root, label, template }: { root: TreeNode; label: string; template: Template }) {
  const t = useTextOf(steerText)
  const [, navigate] = useLocation()
  const [active, setActive] = useState(0)
  const [shown, setShown] = useState<string>()
  const drawing = useRef<SVGSVGElement>(null)
  const { placed, rows, levels } = layout(root)
  const at = Math.min(active, placed.length - 1)
  const chosen = placed.find(({ node }) => node.id === shown)
  const beside = chosen && objectOf(chosen.node, template)
  const open = (node: TreeNode) => {
    const to = addressOf(node, template)
    if (to) navigate(to)
  }
  /** Shows the object next to the tree; a group of pods leads to the search for them. */
  const show = (node: TreeNode) => (objectOf(node, template) ? setShown(node.id === shown ? undefined : node.id) : open(node))
  const key = (event: KeyboardEvent) => {
    if (event.key === 'Enter' || event.key === ' ') {
      event.preventDefault()
      return event.key === 'Enter' ? open(placed[at]!.node) : show(placed[at]!.node)
    }
    if (event.key === 'Escape') return setShown(undefined)
    const to = stepTo(event.key, at, placed)
    if (to === undefined || to < 0) return
    event.preventDefault()
    setActive(to)
    drawing.current?.querySelector<SVGGElement>(`[data-nth="${to}"]`)?.focus()
  }
  const x = (one: Placed) => one.level * COLUMN + 4
  const y = (one: Placed) => one.row * ROW + 4
  return (
    <>
      <p className="notice">{t.treeHint}</p>
      <div className={beside ? 'with-panel' : undefined}>
        <div className="scroll topology">
          <svg ref={drawing} width={levels * COLUMN} height={Math.max(1, rows) * ROW + 4} role="tree" aria-label={label} onKeyDown={key}>
            <g aria-hidden="true">
              {placed.map((one) => {
                const above = one.parent === undefined ? undefined : placed[one.parent]
                if (!above) return null
                const [fromX, fromY, toX, toY] = [x(above) + WIDTH, y(above) + HEIGHT / 2, x(one), y(one) + HEIGHT / 2]
                const middle = (fromX + toX) / 2
                return <path key={one.node.id} className={`edge ${one.node.edge ?? ''}`} d={`M${fromX} ${fromY}C${middle} ${fromY} ${middle} ${toY} ${toX} ${toY}`} />
              })}
            </g>
            {placed.map((one, nth) => {
              const { node } = one
              const isCut = node.name.length > LETTERS
              const name = isCut ? `…${node.name.slice(1 - LETTERS)}` : node.name
              // Truncated for display; the full text is available to screen readers.
              const told = [SIGNS[node.health], node.kind, node.note, name].filter(Boolean).join(' ') + (isCut ? `; ${node.name}` : '')
              return (
                <g
                  key={node.id}
                  role="treeitem"
                  aria-level={one.level + 1}
                  aria-setsize={one.set}
                  aria-posinset={one.nth}
                  aria-label={told}
                  aria-selected={nth === at}
                  tabIndex={nth === at ? 0 : -1}
                  data-nth={nth}
                  data-kind={node.kind}
                  className={`node ${node.health}`}
                  transform={`translate(${x(one)} ${y(one)})`}
                  onFocus={() => setActive(nth)}
                  onClick={() => show(node)}
                  onDoubleClick={() => open(node)}
                >
                  <title>{told}</title>
                  <rect width={WIDTH} height={HEIGHT} rx={6} />
                  {node.cluster && <ClusterMark name={node.cluster} x={WIDTH - 17} y={6} width={10} height={10} />}
                  <text x={10} y={14} className="kind">
                    {SIGNS[node.health]} {node.kind} {node.note}
                  </text>{' '}
                  <text x={10} y={28}>
                    {name}
                  </text>
                </g>
              )
            })}
          </svg>
        </div>
        {beside && (
          <section className="peek" aria-label={beside.name}>
            <p className="acts">
              <button type="button" className="quiet" onClick={() => setShown(undefined)}>
                {t.close}
              </button>
            </p>
            <Short key={shown} of={beside} />
          </section>
        )}
      </div>
    </>
  )
}
