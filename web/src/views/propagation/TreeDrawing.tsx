// A drawing of trees, in SVG; each node is a tree item for screen readers.
import { useRef, useState, type KeyboardEvent } from 'react'
import { useLocation } from 'wouter'
import { ClusterMark } from '../../parts/ClusterName'
import { useTextOf } from '../../text'
import { propagationText } from '../../text/propagation'
import { ObjectSummary, type SummarizedObject } from '../object/ObjectSummary'
import { layout, stepTo, type Placed, type TreeNode } from './tree'
import './propagation.css'

const COLUMN = 230
const ROW = 44
const WIDTH = 200
const HEIGHT = 34
/** Characters that fit a node. */
const LETTERS = 26

const SIGNS = { good: '✓', bad: '✗', unknown: '·' }

interface TreeDrawingProps {
  roots: readonly TreeNode[]
  label: string
  /** The object of a node, which is shown next to the tree; a node of several objects has none. */
  objectOf: (node: TreeNode) => SummarizedObject | undefined
  addressOf: (node: TreeNode) => string | undefined
}

/** Trees as a drawing that is navigated with arrow keys. */
export function TreeDrawing({ roots, label, objectOf, addressOf }: TreeDrawingProps) {
  const t = useTextOf(propagationText)
  const [, navigate] = useLocation()
  const [active, setActive] = useState(0)
  const [shown, setShown] = useState<string>()
  const drawing = useRef<SVGSVGElement>(null)
  const { placed, rows, levels } = layout(...roots)
  const at = Math.min(active, placed.length - 1)
  const chosen = placed.find(({ node }) => node.id === shown)
  const beside = chosen && objectOf(chosen.node)
  const open = (node: TreeNode) => {
    const to = addressOf(node)
    if (to) navigate(to)
  }
  /** Shows the object next to the tree; a group of pods leads to the search for them. */
  const show = (node: TreeNode) => (objectOf(node) ? setShown(node.id === shown ? undefined : node.id) : open(node))
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
              const told = [SIGNS[node.health], node.kind, node.note, name].filter(Boolean).join(' ') + (isCut ? `; ${node.name}` : '') + (node.title ? `; ${node.title}` : '')
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
            <ObjectSummary key={shown} of={beside} />
          </section>
        )}
      </div>
    </>
  )
}
