import { useQuery } from '@tanstack/react-query'
import { useMemo } from 'react'
import { Link, useLocation } from 'wouter'
import { objectAddress } from '../../api/address'
import { CONTROL_PLANE, getJson, viewErrorOf, type ObjectRef } from '../../api/client'
import { API } from '../../api/searchApi'
import { ClusterMark, clusterColour } from '../../parts/ClusterName'
import { Options } from '../../parts/Options'
import { Table } from '../../parts/Table'
import { useText, useTextOf } from '../../text'
import { objectText as texts } from '../../text/object'
import { Dependents } from './Dependents'
import { DIRECTIONS, isDirection, toGraph, type BlastRadius, type Direction } from './blastRadius'
import { DependencyTree } from './DependencyTree'
import { toTree } from './dependencyTree'
import { describeError } from './describeError'
import { layoutGraph, BOX, isEvent, type Box, type Edge, type Graph, type Line, type Node } from './layout'
import { NodeCells } from './NodeCells'
import { objectParameters } from './objects'
import { useViewParameters } from './state'

const DEPTHS = ['1', '2', '3', '4', '5']
const DEFAULT_DEPTH = '2'

/** Related tab: references from and to an object over several steps, as a graph or a table, or the objects that depend on it or on
 * which it depends. */
export function Related({ objectRef }: { objectRef: ObjectRef }) {
  const t = useTextOf(texts)
  const [view, change] = useViewParameters()
  const direction = isDirection(view.side) ? view.side : undefined
  const depth = DEPTHS.find((steps) => steps === view.depth) ?? DEFAULT_DEPTH
  const isTable = view.as === 'list'
  const graph = useQuery({
    queryKey: ['graph', objectRef, depth],
    queryFn: ({ signal }) => getJson<Graph>(`${API}/graph?${objectParameters(objectRef)}&depth=${encodeURIComponent(depth)}`, signal),
    placeholderData: (previous) => previous,
    refetchInterval: 10_000,
    enabled: direction === undefined,
  })
  const directionSelect = (
    <label>
      {t.show}{' '}
      <select value={direction ?? ''} onChange={(event) => change({ side: event.target.value || undefined, fold: undefined })}>
        <option value="">{t.neighbours}</option>
        <Options values={DIRECTIONS} labels={t.directions} />
      </select>
    </label>
  )
  const drawGraph = (drawn: Graph) => (
    <RelatedGraph graph={drawn} open={new Set(view.open?.split(','))} onOpen={(key) => change({ open: [...(view.open?.split(',') ?? []), key].join(',') })} />
  )
  const drawTree = (blastRadius: BlastRadius, shownDirection: Direction) => {
    const root = toTree(blastRadius)
    const toggled = new Set(view.fold?.split(','))
    const toggle = (id: string) => {
      if (!toggled.delete(id)) toggled.add(id)
      change({ fold: [...toggled].join() || undefined })
    }
    return root && <DependencyTree key={shownDirection} root={root} label={t.directions[shownDirection]} toggled={toggled} onToggle={toggle} />
  }
  if (direction !== undefined) {
    return (
      <>
        <p className="tools">
          {directionSelect}
          {(['tree', 'graph'] as const).map((form) => (
            <button key={form} type="button" aria-pressed={view.as === form} onClick={() => change({ as: view.as === form ? undefined : form })}>
              {form === 'tree' ? t.asTree : t.asGraph}
            </button>
          ))}
        </p>
        <Dependents
          objectRef={objectRef}
          direction={direction}
          draw={view.as === 'tree' ? (blastRadius) => drawTree(blastRadius, direction) : view.as === 'graph' ? (blastRadius) => drawGraph(toGraph(blastRadius)) : undefined}
        />
      </>
    )
  }
  return (
    <>
      <p className="tools">
        {directionSelect}
        <label>
          {t.steps}{' '}
          <select value={depth} onChange={(event) => change({ depth: event.target.value })}>
            {DEPTHS.map((steps) => (
              <option key={steps}>{steps}</option>
            ))}
          </select>
        </label>
        <button type="button" aria-pressed={isTable} onClick={() => change({ as: isTable ? undefined : 'list' })}>
          {t.asTable}
        </button>
      </p>
      {viewErrorOf(graph.error) !== undefined && <p role="alert">{describeError(graph.error, objectRef.cluster, t)}</p>}
      {graph.data && graph.data.nodes.length === 1 && <p className="empty">{t.nothingRelated}</p>}
      {graph.data?.more && <p className="notice">{t.moreRelated(graph.data.nodes.length)}</p>}
      {graph.data && (isTable ? <RelatedTables graph={graph.data} /> : drawGraph(graph.data))}
    </>
  )
}

const addressOf = (node: Node) => objectAddress(node, 'related')

function RelatedGraph({ graph, open, onOpen }: { graph: Graph; open: ReadonlySet<string>; onOpen: (key: string) => void }) {
  const t = useTextOf(texts)
  const openKeys = [...open].join()
  const { boxes, lines, width, height } = useMemo(() => layoutGraph(graph, open), [graph, openKeys])
  return (
    <>
      <p className="notice legend">{t.graphLegend}</p>
      <div className="graph" role="region" aria-label={t.related} tabIndex={0}>
        <svg width={width + 4} height={height + 4} viewBox={`-2 -2 ${width + 4} ${height + 4}`} role="group" aria-label={t.related}>
          {lines.map((line) => (
            <Arrow key={`${line.from.key} ${line.to.key} ${line.relation}`} {...line} />
          ))}
          {boxes.map((box) => (
            <GraphBox key={box.key} box={box} graph={graph} onOpen={onOpen} />
          ))}
        </svg>
      </div>
    </>
  )
}

/** Arrow from the referring to the referenced object. */
function Arrow({ from, to, relation }: Line) {
  const t = useTextOf(texts)
  const forward = from.x <= to.x
  const x1 = forward ? from.x + BOX.width : from.x
  const x2 = forward ? to.x : to.x + BOX.width
  const [y1, y2] = [from.y + BOX.height / 2, to.y + BOX.height / 2]
  const bend = from.x === to.x ? BOX.across / 2 : (x2 - x1) / 2
  const [c1, c2] = from.x === to.x ? [x1 + bend, x1 + bend] : [x1 + bend, x2 - bend]
  const end = from.x === to.x ? x1 : x2
  return (
    <g className={`arrow ${relation}`} aria-hidden="true">
      <path d={`M${x1} ${y1}C${c1} ${y1} ${c2} ${y2} ${end} ${y2}`} />
      <circle cx={end} cy={y2} r="3" />
      <title>{t.relations[relation].to}</title>
    </g>
  )
}

const truncate = (text: string, maxLength: number) => (text.length > maxLength ? `${text.slice(0, maxLength - 1)}…` : text)

function GraphBox({ box, graph: { nodes, edges }, onOpen }: { box: Box; graph: Graph; onOpen: (key: string) => void }) {
  const t = useTextOf(texts)
  const [, navigate] = useLocation()
  const { controlPlane } = useText()
  const nth = box.members[0] ?? 0
  const node = nodes[nth]
  if (!node) return null
  const isFolded = box.members.length > 1
  const state = [node.status, node.ready].filter(Boolean).join(' ')
  const name = isFolded ? t.foldedBox(box.members.length) : node.name
  const relationTexts = isFolded || nth === 0 ? [] : relationsOf(nth, edges).map(({ role, other }) => `${t.relations[role.relation][role.end]} ${nodes[other]?.kind} ${nodes[other]?.name}`)
  const kind = `${node.kind} · ${node.cluster === CONTROL_PLANE ? controlPlane : node.cluster}`
  const labelLines = [truncate(kind, state && !isFolded ? 23 : 32), truncate(name, 26), ...(isFolded || !state ? [] : [truncate(state, 14)])]
  const isTruncated = labelLines[0] !== kind || labelLines[1] !== name
  // Truncated for display; the full text is available to screen readers.
  const label = `${labelLines.join(' ')}${isTruncated ? `; ${kind} ${name}` : ''}${relationTexts.length > 0 ? `; ${relationTexts.slice(0, 3).join('; ')}` : ''}`
  const content = (
    <>
      <title>{label}</title>
      <rect width={BOX.width} height={BOX.height} rx="6" />
      <rect className="of-cluster" width="5" height={BOX.height} rx="2" fill={clusterColour(node.cluster)} />
      <ClusterMark name={node.cluster} x="13" y="9" width="10" height="10" />
      <text x="27" y="18" className="kind">
        {labelLines[0]}
      </text>{' '}
      <text x="14" y="36">
        {labelLines[1]}
      </text>
      {labelLines[2] && (
        <>
          {' '}
          <text x={BOX.width - 8} y="18" textAnchor="end" className="state">
            {labelLines[2]}
          </text>
        </>
      )}
    </>
  )
  const at = `translate(${box.x} ${box.y})`
  if (nth === 0) {
    return (
      <g className="place here" transform={at} role="img" aria-label={label}>
        {content}
      </g>
    )
  }
  if (isFolded) {
    const unfold = () => onOpen(box.key)
    return (
      <g
        className="place many"
        transform={at}
        role="button"
        tabIndex={0}
        aria-label={label}
        onClick={unfold}
        onKeyDown={(event) => (event.key === 'Enter' || event.key === ' ') && (event.preventDefault(), unfold())}
      >
        {content}
      </g>
    )
  }
  return (
    <g transform={at}>
      <a
        className="place"
        href={addressOf(node)}
        aria-label={label}
        onClick={(event) => {
          if (event.ctrlKey || event.metaKey || event.shiftKey) return
          event.preventDefault()
          navigate(addressOf(node))
        }}
      >
        {content}
      </a>
    </g>
  )
}

/** The kind and name of a related object, as a link. */
function NodeLink({ node }: { node: Node }) {
  return (
    <Link href={addressOf(node)}>
      {node.kind} {node.name}
    </Link>
  )
}

interface Relation {
  role: { relation: Edge['relation']; end: 'from' | 'to' }
  other: number
}

/** Relations of a node. `end` is `to` if the node refers to the other one, `from` if the other one refers to it. */
function relationsOf(nth: number, edges: Edge[]): Relation[] {
  return edges.flatMap(({ from, to, relation }): Relation[] =>
    from === nth ? [{ role: { relation, end: 'to' }, other: to }] : to === nth ? [{ role: { relation, end: 'from' }, other: from }] : [],
  )
}

/** The graph as tables: one for Events, below the one for other objects. */
function RelatedTables({ graph }: { graph: Graph }) {
  const t = useTextOf(texts)
  const all = graph.nodes.map((_, nth) => nth)
  const isOfEvent = (nth: number) => nth > 0 && graph.nodes[nth] !== undefined && isEvent(graph.nodes[nth])
  const events = all.filter(isOfEvent)
  return (
    <>
      <RelatedTable label={t.related} graph={graph} indices={all.filter((nth) => !isOfEvent(nth))} />
      {events.length > 0 && <RelatedTable label={t.tabs.events} graph={graph} indices={events} />}
    </>
  )
}

function RelatedTable({ label, graph: { nodes, edges }, indices }: { label: string; graph: Graph; indices: number[] }) {
  const t = useTextOf(texts)
  const rows = indices.flatMap((nth) => (nodes[nth] ? [{ node: nodes[nth], nth }] : []))
  return (
    <Table caption label={label} headers={t.relatedColumns}>
      {rows.map(({ node, nth }) => (
        <tr key={nth}>
          <th scope="row">{nth === 0 ? node.name : <Link href={addressOf(node)}>{node.name}</Link>}</th>
          <NodeCells node={node} />
          <td>
            <ul className="relations">
              {relationsOf(nth, edges).map(({ role, other }) => (
                <li key={`${role.relation} ${role.end} ${other}`}>
                  {t.relations[role.relation][role.end]} {nodes[other] && <NodeLink node={nodes[other]} />}
                </li>
              ))}
            </ul>
          </td>
        </tr>
      ))}
    </Table>
  )
}
