import { useEffect, useId, useLayoutEffect, useRef, useState, type KeyboardEvent } from 'react'
import type { Notice, Suggestion } from '../api/types'
import { accept, useSuggestions } from '../api/useSuggestions'
import { useText } from '../text'
import { isTyping, useKeys } from './keys'
import { Query } from './Query'

/** Debounce interval before typing starts a search, in milliseconds. */
const LIVE_AFTER = 150

interface SearchBoxProps {
  value: string
  /** Notices of the server about `value`. */
  notices: Notice[]
  /** Previous queries, newest first. */
  asked: string[]
  /** `typing`: the user is still typing. */
  onAsk: (query: string, typing: boolean) => void
}

/** The search box: text with syntax highlighting and suggestions. `/` focuses it from any view. */
export function SearchBox({ value, notices, asked, onAsk }: SearchBoxProps) {
  const t = useText()
  const list = useId()
  const [text, setText] = useState(value)
  const [at, setAt] = useState(value.length)
  const [open, setOpen] = useState(false)
  const [active, setActive] = useState(-1)
  const box = useRef<HTMLInputElement>(null)
  const paint = useRef<HTMLDivElement>(null)
  /** Cursor position after a suggestion is inserted. */
  const moved = useRef<number>(undefined)
  const found = useSuggestions(text, at, open && text !== '')

  // The box's own query returns as its value: only values from elsewhere replace the text.
  const said = useRef(value)
  useEffect(() => {
    if (value !== said.current) setText(value)
    said.current = value
  }, [value])

  useEffect(() => {
    if (text === said.current) return
    const timer = setTimeout(() => {
      // Enter was pressed before the timer fired.
      if (text === said.current) return
      said.current = text
      onAsk(text, true)
    }, LIVE_AFTER)
    return () => clearTimeout(timer)
  }, [text, onAsk])

  useLayoutEffect(() => {
    if (moved.current !== undefined) box.current?.setSelectionRange(moved.current, moved.current)
    moved.current = undefined
    follow()
  }, [text])

  useKeys((event) => {
    if (event.key !== '/' || isTyping(event.target) || event.ctrlKey || event.metaKey) return
    event.preventDefault()
    box.current?.focus()
    box.current?.select()
  })

  /** The highlighted text lies behind the input and scrolls with it. */
  const follow = () => {
    if (paint.current && box.current) paint.current.scrollLeft = box.current.scrollLeft
  }

  const items: (Suggestion & { query?: string })[] =
    !open ? [] : text === '' ? asked.slice(0, 10).map((query) => ({ text: query, about: t.recent, query })) : (found?.items ?? [])
  const chosen = items[active]

  const take = (item: Suggestion & { query?: string }) => {
    if (item.query !== undefined) {
      setText(item.query)
      ask(item.query)
    } else if (found) {
      const next = accept(text, found, item)
      setText(next.query)
      setAt(next.at)
      moved.current = next.at
      setActive(-1)
      box.current?.focus()
    }
  }

  const ask = (query: string) => {
    said.current = query
    setOpen(false)
    setActive(-1)
    onAsk(query, false)
  }

  const key = (event: KeyboardEvent<HTMLInputElement>) => {
    const down = event.key === 'ArrowDown'
    if (down || event.key === 'ArrowUp') {
      if (!open) setOpen(true)
      else if (items.length > 0) {
        // From the text into the list, around, and back to the text.
        const all = items.length + 1
        setActive(((active + 1 + (down ? 1 : -1) + all) % all) - 1)
      }
      event.preventDefault()
    } else if (event.key === 'Tab' && !event.shiftKey && items.length > 0 && text !== '') {
      take(chosen ?? items[0]!)
      event.preventDefault()
    } else if (event.key === 'Enter' && chosen && !event.nativeEvent.isComposing) {
      take(chosen)
      event.preventDefault()
    } else if (event.key === 'Escape') {
      if (items.length > 0) setOpen(false)
      else event.currentTarget.blur()
      setActive(-1)
      // Otherwise the browser clears the input.
      event.preventDefault()
    }
  }

  return (
    <form
      role="search"
      className="searchbox"
      onSubmit={(event) => {
        event.preventDefault()
        ask(text)
      }}
    >
      <div className="paint" ref={paint} aria-hidden="true">
        <Query text={text} notices={text === value ? notices : []} />
      </div>
      <input
        ref={box}
        type="text"
        role="combobox"
        aria-label={t.searchAll}
        aria-autocomplete="list"
        aria-expanded={items.length > 0}
        aria-controls={list}
        aria-activedescendant={chosen ? `${list}-${active}` : undefined}
        placeholder="kind:pod status:CrashLoopBackOff region:eu-* nginx:1.27"
        spellCheck={false}
        autoComplete="off"
        autoCapitalize="off"
        autoFocus
        value={text}
        onChange={(event) => {
          setText(event.target.value)
          setAt(event.target.selectionStart ?? event.target.value.length)
          setOpen(true)
          setActive(-1)
        }}
        onSelect={(event) => setAt(event.currentTarget.selectionStart ?? 0)}
        onScroll={follow}
        onKeyDown={key}
        onBlur={() => setOpen(false)}
      />
      <kbd aria-hidden="true">/</kbd>
      <ul id={list} role="listbox" aria-label={t.suggestions} hidden={items.length === 0}>
        {items.map((item, nth) => (
          <li
            key={item.text}
            id={`${list}-${nth}`}
            role="option"
            aria-selected={nth === active}
            // The input keeps the focus.
            onPointerDown={(event) => event.preventDefault()}
            onClick={() => take(item)}
          >
            <Query text={item.text} />
            <span>{item.about}</span>
            {item.count !== undefined && <b>{item.count.toLocaleString(t.locale)}</b>}
          </li>
        ))}
        {found?.range && text !== '' && (
          <li role="presentation" className="range">
            {t.between(...found.range)}
          </li>
        )}
      </ul>
    </form>
  )
}
