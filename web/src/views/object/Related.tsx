import { useQuery } from '@tanstack/react-query'
import { useMemo } from 'react'
import { Link, useLocation } from 'wouter'
import { objectAddress } from '../../api/address'
import { CONTROL_PLANE, getJson, reported, type ObjectRef } from '../../api/client'
import { API } from '../../api/useSearch'
import { ClusterMark, ClusterName, colourOf } from '../../parts/ClusterName'
import { Pill } from '../../parts/Pill'
import { Table } from '../../parts/Table'
import { useText, useTextOf } from '../../text'
import { object as texts } from '../../text/object'
import { Dependents } from './Dependents'
import { isSide, SIDES } from './reached'
import { explain } from './explain'
import { arrange, BOX, isEvent, type Box, type Edge, type Graph, type Line, type Node } from './layout'
import { objectParameters } from './objects'
import { useView } from './state'

const DEPTH = '2'

/** References of an object in both directions, over several steps: as a graph or a table. */
export function Related({ refTo }: { refTo: ObjectRef }) {
  const t = useTextOf(texts)
  const [view, change] = useView()
  const side = isSide(view.side) ? view.side : undefined
  const depth = view.depth ?? DEPTH
  const listed = view.as === 'list'
  const graph = useQuery({
    queryKey: ['graph', refTo, depth],
    queryFn: ({ signal }) => getJson<Graph>(`${API}/graph?${objectParameters(refTo)}&depth=${encodeURIComponent(depth)}`, signal),
    placeholderData: (previous) => previous,
    refetchInterval: 10_000,
    enabled: side === undefined,
  })
  const sides = (
    <label>
      {t.show}{' '}
      <select value={side ?? ''} onChange={(event) => change({ side: event.target.value || undefined })}>
        <option value="">{t.neighbours}</option>
        {SIDES.map((one) => (
          <option key={one} value={one}>
            {t.sides[one]}
          </option>
        ))}
      </select>
    </label>
  )
  if (side !== undefined) {
    return (
      <>
        <p className="tools">{sides}</p>
        <Dependents refTo={refTo} side={side} />
      </>
    )
  }
  return (
    <>
      <p className="tools">
        {sides}
        <label>
          {t.steps}{' '}
          <select value={depth} onChange={(event) => change({ depth: event.target.value })}>
            {['1', '2', '3', '4', '5'].map((steps) => (
              <option key={steps}>{steps}</option>
            ))}
          </select>
        </label>
        <button type="button" aria-pressed={listed} onClick={() => change({ as: listed ? undefined : 'list' })}>
          {t.asTable}
        </button>
      </p>
      {reported(graph.error) !== undefined && <p role="alert">{explain(graph.error, refTo.cluster, t)}</p>}
      {graph.data && graph.data.nodes.length === 1 && <p className="empty">{t.nothingRelated}</p>}
      {graph.data?.more && <p className="notice">{t.moreRelated(graph.data.nodes.length)}</p>}
      {graph.data && (listed ? <Listed graph={graph.data} /> : <Drawn graph={graph.data} open={new Set(view.open?.split(','))} onOpen={(key) => change({ open: [...(view.open?.split(',') ?? []), key].join(',') })} />)}
    </>
  )
}

const addressOf = (node: Node) => objectAddress(node, 'related')

function Drawn({ graph, open, onOpen }: { graph: Graph; open: ReadonlySet<string>; onOpen: (key: string) => void }) {
  const t = useTextOf(texts)
  const opened = [...open].join()
  const { boxes, lines, width, height } = useMemo(() => arrange(graph, open), [graph, opened])
  return (
    <>
      <p className="notice legend">{t.graphLegend}</p>
      <div className="graph" role="region" aria-label={t.related} tabIndex={0}>
        <svg width={width + 4} height={height + 4} viewBox={`-2 -2 ${width + 4} ${height + 4}`} role="group" aria-label={t.related}>
          {lines.map((line) => (
            <Arrow key={`${line.from.key} ${line.to.key} ${line.relation}`} {...line} />
          ))}
          {boxes.map((box) => (
            <Place key={box.key} box={box} graph={graph} onOpen={onOpen} />
          ))}
        </svg>
      </div>
    </>
  )
}

/** From the referring to the referenced object, with the relation as text. */
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

const cut = (text: string, most: number) => (text.length > most ? `${text.slice(0, most - 1)}…` : text)

function Place({ box, graph: { nodes, edges }, onOpen }: { box: Box; graph: Graph; onOpen: (key: string) => void }) {
  const t = useTextOf(texts)
  const [, navigate] = useLocation()
  const { controlPlane } = useText()
  const nth = box.members[0] ?? 0
  const node = nodes[nth]
  if (!node) return null
  const many = box.members.length > 1
  const state = [node.status, node.ready].filter(Boolean).join(' ')
  const name = many ? t.folded(box.members.length) : node.name
  const how = many || nth === 0 ? [] : related(nth, edges).map(({ word, other }) => `${t.relations[word.relation][word.end]} ${nodes[other]?.kind} ${nodes[other]?.name}`)
  const kind = `${node.kind} · ${node.cluster === CONTROL_PLANE ? controlPlane : node.cluster}`
  const shown = [cut(kind, state && !many ? 23 : 32), cut(name, 26), ...(many || !state ? [] : [cut(state, 14)])]
  const isCut = shown[0] !== kind || shown[1] !== name
  // Truncated for display; the full text is available to screen readers.
  const label = `${shown.join(' ')}${isCut ? `; ${kind} ${name}` : ''}${how.length > 0 ? `; ${how.slice(0, 3).join('; ')}` : ''}`
  const inside = (
    <>
      <title>{label}</title>
      <rect width={BOX.width} height={BOX.height} rx="6" />
      <rect className="of-cluster" width="5" height={BOX.height} rx="2" fill={colourOf(node.cluster)} />
      <ClusterMark name={node.cluster} x="13" y="9" width="10" height="10" />
      <text x="27" y="18" className="kind">
        {shown[0]}
      </text>{' '}
      <text x="14" y="36">
        {shown[1]}
      </text>
      {shown[2] && (
        <>
          {' '}
          <text x={BOX.width - 8} y="18" textAnchor="end" className="state">
            {shown[2]}
          </text>
        </>
      )}
    </>
  )
  const at = `translate(${box.x} ${box.y})`
  if (nth === 0) {
    return (
      <g className="place here" transform={at} role="img" aria-label={label}>
        {inside}
      </g>
    )
  }
  if (many) {
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
        {inside}
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
        {inside}
      </a>
    </g>
  )
}

interface Relation {
  word: { relation: Edge['relation']; end: 'from' | 'to' }
  other: number
}

/** The relation to an object: `to` if it is referenced. */
function related(nth: number, edges: Edge[]): Relation[] {
  return edges.flatMap(({ from, to, relation }): Relation[] =>
    from === nth ? [{ word: { relation, end: 'to' }, other: to }] : to === nth ? [{ word: { relation, end: 'from' }, other: from }] : [],
  )
}

/** Events have a table of their own, below the other objects. */
function Listed({ graph }: { graph: Graph }) {
  const t = useTextOf(texts)
  const all = graph.nodes.map((_, nth) => nth)
  const isOfEvent = (nth: number) => nth > 0 && graph.nodes[nth] !== undefined && isEvent(graph.nodes[nth])
  const events = all.filter(isOfEvent)
  return (
    <>
      <Rows label={t.related} graph={graph} shown={all.filter((nth) => !isOfEvent(nth))} />
      {events.length > 0 && <Rows label={t.tabs.events} graph={graph} shown={events} />}
    </>
  )
}

function Rows({ label, graph: { nodes, edges }, shown }: { label: string; graph: Graph; shown: number[] }) {
  const t = useTextOf(texts)
  const rows = shown.flatMap((nth) => (nodes[nth] ? [{ node: nodes[nth], nth }] : []))
  return (
    <Table caption label={label} heads={t.relatedColumns}>
      {rows.map(({ node, nth }) => (
        <tr key={nth}>
          <th scope="row">{nth === 0 ? node.name : <Link href={addressOf(node)}>{node.name}</Link>}</th>
          <td>{node.kind}</td>
          <td>
            <ClusterName name={node.cluster} />
          </td>
          <td>
            <Pill state={node.status} /> {node.ready}
          </td>
          <td>
            <ul className="relations">
              {related(nth, edges).map(({ word, other }) => (
                <li key={`${word.relation} ${word.end} ${other}`}>
                  {t.relations[word.relation][word.end]} {nodes[other]?.kind} {nodes[other]?.name}
                </li>
              ))}
            </ul>
          </td>
        </tr>
      ))}
    </Table>
  )
}
