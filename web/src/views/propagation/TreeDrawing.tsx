// Draws trees in SVG; each node is a tree item for screen readers.
import { useRef, useState, type KeyboardEvent } from 'react'
import { useLocation } from 'wouter'
import { ClusterMark } from '../../parts/ClusterName'
import { useTextOf } from '../../text'
import { propagationText } from '../../text/propagation'
import { ObjectSummary, type SummarizedObject } from '../object/ObjectSummary'
import { layoutTrees, nodeIndexAfterKey, type PlacedNode, type TreeNode } from './tree'
import './propagation.css'

const COLUMN_WIDTH = 230
const ROW_HEIGHT = 44
const NODE_WIDTH = 200
const NODE_HEIGHT = 34
/** Maximum number of characters that fit a node. */
const MAX_NAME_CHARACTERS = 26

const HEALTH_SIGNS = { good: '✓', bad: '✗', unknown: '·' }

interface TreeDrawingProps {
  roots: readonly TreeNode[]
  label: string
  /** The object of a node, which is shown next to the tree; undefined for a group. */
  objectOf: (node: TreeNode) => SummarizedObject | undefined
  /** The address that Enter and a double click open. */
  addressOf: (node: TreeNode) => string | undefined
  /** Id of the node whose object is shown. */
  shownId: string | undefined
  onShow: (id: string | undefined) => void
}

/** Drawing of trees that is navigated with arrow keys. */
export function TreeDrawing({ roots, label, objectOf, addressOf, shownId, onShow }: TreeDrawingProps) {
  const t = useTextOf(propagationText)
  const [, navigate] = useLocation()
  const [focused, setActive] = useState<number>()
  const drawing = useRef<SVGSVGElement>(null)
  const { placed, rows, levels } = layoutTrees(...roots)
  const shownIndex = placed.findIndex(({ node }) => node.id === shownId)
  // Until a node has the focus, Tab leads to the one that is shown.
  const at = Math.min(focused ?? Math.max(shownIndex, 0), placed.length - 1)
  const shownNode = placed[shownIndex]
  const shownObject = shownNode && objectOf(shownNode.node)
  const open = (node: TreeNode) => {
    const to = addressOf(node)
    if (to) navigate(to)
  }
  /** Shows the object of a node next to the tree, or hides it; a group opens its search. */
  const show = (node: TreeNode) => (objectOf(node) ? onShow(node.id === shownId ? undefined : node.id) : open(node))
  const handleKey = (event: KeyboardEvent) => {
    if (event.key === 'Enter' || event.key === ' ') {
      event.preventDefault()
      return event.key === 'Enter' ? open(placed[at]!.node) : show(placed[at]!.node)
    }
    if (event.key === 'Escape') return onShow(undefined)
    const to = nodeIndexAfterKey(event.key, at, placed)
    if (to === undefined || to < 0) return
    event.preventDefault()
    setActive(to)
    drawing.current?.querySelector<SVGGElement>(`[data-nth="${to}"]`)?.focus()
  }
  const x = (placedNode: PlacedNode) => placedNode.level * COLUMN_WIDTH + 4
  const y = (placedNode: PlacedNode) => placedNode.row * ROW_HEIGHT + 4
  return (
    <>
      <p className="notice">{t.treeHint}</p>
      <div className={shownObject ? 'with-panel' : undefined}>
        <div className="scroll topology">
          <svg ref={drawing} width={levels * COLUMN_WIDTH} height={Math.max(1, rows) * ROW_HEIGHT + 4} role="tree" aria-label={label} onKeyDown={handleKey}>
            <g aria-hidden="true">
              {placed.map((placedNode) => {
                const above = placedNode.parent === undefined ? undefined : placed[placedNode.parent]
                if (!above) return null
                const [fromX, fromY, toX, toY] = [x(above) + NODE_WIDTH, y(above) + NODE_HEIGHT / 2, x(placedNode), y(placedNode) + NODE_HEIGHT / 2]
                const middle = (fromX + toX) / 2
                return <path key={placedNode.node.id} className={`edge ${placedNode.node.edge ?? ''}`} d={`M${fromX} ${fromY}C${middle} ${fromY} ${middle} ${toY} ${toX} ${toY}`} />
              })}
            </g>
            {placed.map((placedNode, nth) => {
              const { node } = placedNode
              const isCut = node.name.length > MAX_NAME_CHARACTERS
              const name = isCut ? `…${node.name.slice(1 - MAX_NAME_CHARACTERS)}` : node.name
              // Truncated for display; the full text is available to screen readers.
              const note = node.work ? t.syncStates[node.work.sync] : node.note
              const description = [HEALTH_SIGNS[node.health], node.kind, note, name].filter(Boolean).join(' ') + (isCut ? `; ${node.name}` : '') + (node.title ? `; ${node.title}` : '')
              return (
                <g
                  key={node.id}
                  role="treeitem"
                  aria-level={placedNode.level + 1}
                  aria-setsize={placedNode.siblingCount}
                  aria-posinset={placedNode.position}
                  aria-label={description}
                  aria-selected={nth === at}
                  tabIndex={nth === at ? 0 : -1}
                  data-nth={nth}
                  data-kind={node.kind}
                  className={`node ${node.health}`}
                  transform={`translate(${x(placedNode)} ${y(placedNode)})`}
                  onFocus={() => setActive(nth)}
                  onClick={() => show(node)}
                  onDoubleClick={() => open(node)}
                >
                  <title>{description}</title>
                  <rect width={NODE_WIDTH} height={NODE_HEIGHT} rx={6} />
                  {node.cluster && <ClusterMark name={node.cluster} x={NODE_WIDTH - 17} y={6} width={10} height={10} />}
                  <text x={10} y={14} className="kind">
                    {HEALTH_SIGNS[node.health]} {node.kind} {note}
                  </text>{' '}
                  <text x={10} y={28}>
                    {name}
                  </text>
                </g>
              )
            })}
          </svg>
        </div>
        {shownObject && (
          <section className="peek" aria-label={shownObject.name}>
            <p className="acts">
              <button type="button" className="quiet" onClick={() => onShow(undefined)}>
                {t.close}
              </button>
            </p>
            <ObjectSummary key={shownId} object={shownObject} />
          </section>
        )}
      </div>
    </>
  )
}
