// Tree view of the objects that depend on an object, or that it depends on.
import { useEffect, useRef, useState, type KeyboardEvent, type MouseEvent } from 'react'
import { Link, useLocation } from 'wouter'
import { objectAddress } from '../../api/address'
import { KindIcon } from '../../icons/Icon'
import { ClusterName } from '../../parts/ClusterName'
import { Pill } from '../../parts/Pill'
import { useTextOf } from '../../text'
import { objectText as texts } from '../../text/object'
import { effectOfKey, isToggle, visibleItems, type DependencyNode, type TreeItem } from './dependencyTree'

interface DependencyTreeProps {
  root: DependencyNode
  label: string
  /** Ids of the items that are expanded or collapsed contrary to their default. */
  toggled: ReadonlySet<string>
  onToggle: (id: string) => void
}

const INDENT_PX = 24

/** Tree that is navigated with arrow keys. Enter opens an object. */
export function DependencyTree({ root, label, toggled, onToggle }: DependencyTreeProps) {
  const t = useTextOf(texts)
  const [, navigate] = useLocation()
  const [active, setActive] = useState(0)
  const list = useRef<HTMLUListElement>(null)
  const movesFocus = useRef(false)
  const items = visibleItems(root, toggled)
  const at = Math.min(active, items.length - 1)
  // The item that shows more children is replaced by the first of them, which receives the focus.
  useEffect(() => {
    if (!movesFocus.current) return
    movesFocus.current = false
    list.current?.querySelector<HTMLElement>(`[data-nth="${at}"]`)?.focus()
  })
  const open = ({ level, entry }: TreeItem) => level > 1 && navigate(objectAddress(entry.node, 'related'))
  const handleKey = (event: KeyboardEvent) => {
    const item = items[at]
    if (!item || event.ctrlKey || event.metaKey || event.altKey) return
    if (event.key === 'Enter') {
      event.preventDefault()
      if (item.hiddenCount === 0) return void open(item)
    }
    const effect = effectOfKey(event.key === 'Enter' ? ' ' : event.key, at, items)
    if (!effect) return
    event.preventDefault()
    // A move to the same item does not render the tree again.
    movesFocus.current = !('moveTo' in effect) || effect.moveTo !== active
    if ('moveTo' in effect) setActive(effect.moveTo)
    else onToggle(effect.toggle)
  }
  const handleClick = (event: MouseEvent, nth: number, item: TreeItem) => {
    setActive(nth)
    const isLink = event.target instanceof Element && event.target.closest('a') !== null
    if (!isLink && isToggle(item)) onToggle(item.id)
  }
  return (
    <>
      <p className="notice">{t.dependencyTreeHint}</p>
      <ul ref={list} className="plain dependency-tree" role="tree" aria-label={label} onKeyDown={handleKey}>
        {items.map((item, nth) => (
          <li
            key={item.id}
            role="treeitem"
            aria-level={item.level}
            aria-setsize={item.siblingCount}
            aria-posinset={item.position}
            aria-expanded={item.isExpanded}
            aria-selected={nth === at}
            tabIndex={nth === at ? 0 : -1}
            data-nth={nth}
            style={{ paddingInlineStart: `${(item.level - 1) * INDENT_PX}px` }}
            onFocus={() => setActive(nth)}
            onClick={(event) => handleClick(event, nth, item)}
          >
            <i aria-hidden="true">{item.isExpanded === undefined ? '' : item.isExpanded ? '▾' : '▸'}</i>
            {item.hiddenCount > 0 ? <span className="why">{t.moreChildren(item.hiddenCount)}</span> : <TreeObject item={item} />}
          </li>
        ))}
      </ul>
    </>
  )
}

function TreeObject({ item: { level, entry } }: { item: TreeItem }) {
  const { node, relation, via } = entry
  const name = `${node.kind} ${node.namespace ? `${node.namespace}/` : ''}${node.name}`
  return (
    <>
      <KindIcon kind={node.kind} apiVersion={node.apiVersion} />{' '}
      {level === 1 ? (
        <strong>{name}</strong>
      ) : (
        <Link href={objectAddress(node, 'related')} tabIndex={-1}>
          {name}
        </Link>
      )}{' '}
      <ClusterName name={node.cluster} /> <Pill state={node.status} />{' '}
      <span className="why" title={via}>
        {relation}
      </span>
    </>
  )
}
