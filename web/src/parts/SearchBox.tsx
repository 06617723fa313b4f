import { useEffect, useId, useLayoutEffect, useRef, useState, type KeyboardEvent } from 'react'
import { onNavigation } from '../api/navigation'
import type { Notice, SearchDone, Suggestion } from '../api/types'
import { insertSuggestion, useSuggestions } from '../api/useSuggestions'
import { useTypeAhead } from '../api/useTypeAhead'
import { useText } from '../text'
import { isTyping, useKeys } from './keys'
import { ListOption } from './ListOption'
import { Query } from './Query'
import { SearchForm } from './SearchForm'

interface SearchBoxProps {
  value: string
  /** Notices of the server about `value`. */
  notices: Notice[]
  /** Previous queries, newest first. */
  recentQueries: string[]
  /** Outcome of the last search: its summary, or an error message; undefined while a search is running. Each search has a new object. */
  outcome: SearchDone | string | undefined
  /** `typing`: the user is still typing. */
  onQuery: (query: string, typing: boolean) => void
  /** Called when the query that was typed last must no longer be shown. */
  onCancel: () => void
}

/** The search box: text with syntax highlighting and suggestions. `/` focuses it from any view. */
export function SearchBox({ value, notices, recentQueries, outcome, onQuery, onCancel }: SearchBoxProps) {
  const t = useText()
  const list = useId()
  const [text, setText] = useState(value)
  const [cursor, setCursor] = useState(value.length)
  const [isOpen, setIsOpen] = useState(false)
  const [active, setActive] = useState(-1)
  const box = useRef<HTMLInputElement>(null)
  const highlight = useRef<HTMLDivElement>(null)
  /** Cursor position after a suggestion is inserted. */
  const cursorAfterInsert = useRef<number>(undefined)
  const suggestions = useSuggestions(text, cursor, isOpen && text !== '')

  // A submitted query returns as `value`. Only other values replace the text.
  const sentQuery = useRef(value)
  useEffect(() => {
    if (value !== sentQuery.current) setText(value)
    sentQuery.current = value
  }, [value])

  const typeAhead = useTypeAhead<string>((query) => {
    sentQuery.current = query
    onQuery(query, true)
  })
  useEffect(() => {
    if (text === sentQuery.current) typeAhead.cancel()
    else typeAhead.offer(text)
  }, [text, typeAhead])
  useEffect(() => {
    if (outcome !== undefined) typeAhead.complete()
  }, [outcome, typeAhead])

  // A navigation cancels what is being typed, unless it leads to the query that was sent; also one to the current page, whose `value` stays.
  useEffect(
    () =>
      onNavigation((query) => {
        if (query === sentQuery.current) return
        typeAhead.cancel()
        typeAhead.complete()
        onCancel()
        sentQuery.current = query ?? ''
        setText(sentQuery.current)
      }),
    [typeAhead, onCancel],
  )

  useLayoutEffect(() => {
    if (cursorAfterInsert.current !== undefined) box.current?.setSelectionRange(cursorAfterInsert.current, cursorAfterInsert.current)
    cursorAfterInsert.current = undefined
    // In the frame that paints the text, so that no additional layout is forced.
    const frame = requestAnimationFrame(syncScroll)
    return () => cancelAnimationFrame(frame)
  }, [text])

  useKeys((event) => {
    if (event.key !== '/' || isTyping(event.target) || event.ctrlKey || event.metaKey) return
    event.preventDefault()
    box.current?.focus()
    box.current?.select()
  })

  /** The highlighted text lies behind the input and scrolls with it. */
  const syncScroll = () => {
    if (highlight.current && box.current) highlight.current.scrollLeft = box.current.scrollLeft
  }

  const items: (Suggestion & { query?: string })[] =
    !isOpen ? [] : text === '' ? recentQueries.slice(0, 10).map((query) => ({ text: query, about: t.recent, query })) : (suggestions?.items ?? [])
  const chosen = items[active]
  const suggestionNotices = (isOpen && text !== '' && suggestions?.notices) || []

  const applyItem = (item: Suggestion & { query?: string }) => {
    if (item.query !== undefined) {
      setText(item.query)
      submit(item.query)
    } else if (suggestions) {
      const next = insertSuggestion(text, suggestions, item)
      setText(next.query)
      setCursor(next.at)
      cursorAfterInsert.current = next.at
      setActive(-1)
      box.current?.focus()
    }
  }

  const submit = (query: string) => {
    typeAhead.cancel()
    sentQuery.current = query
    setIsOpen(false)
    setActive(-1)
    onQuery(query, false)
  }

  const handleKey = (event: KeyboardEvent<HTMLInputElement>) => {
    const isDown = event.key === 'ArrowDown'
    if (isDown || event.key === 'ArrowUp') {
      if (!isOpen) setIsOpen(true)
      else if (items.length > 0) {
        // The arrow keys cycle through the text (-1) and the options.
        const positions = items.length + 1
        setActive(((active + 1 + (isDown ? 1 : -1) + positions) % positions) - 1)
      }
      event.preventDefault()
    } else if (event.key === 'Tab' && !event.shiftKey && items.length > 0 && text !== '') {
      applyItem(chosen ?? items[0]!)
      event.preventDefault()
    } else if (event.key === 'Enter' && chosen && !event.nativeEvent.isComposing) {
      applyItem(chosen)
      event.preventDefault()
    } else if (event.key === 'Escape') {
      if (items.length > 0) setIsOpen(false)
      else event.currentTarget.blur()
      setActive(-1)
      // Otherwise the browser clears the input.
      event.preventDefault()
    }
  }

  return (
    <SearchForm className="searchbox" onSubmit={() => submit(text)}>
      <div className="paint" ref={highlight} aria-hidden="true">
        <Query text={text} notices={text === value ? notices : undefined} />
      </div>
      <input
        ref={box}
        type="text"
        role="combobox"
        aria-label={t.searchAll}
        aria-autocomplete="list"
        aria-expanded={items.length > 0 || suggestionNotices.length > 0}
        aria-controls={list}
        aria-activedescendant={chosen ? `${list}-${active}` : undefined}
        placeholder="kind:pod status:CrashLoopBackOff region:eu-* nginx:1.27"
        spellCheck={false}
        autoComplete="off"
        autoCapitalize="off"
        autoFocus
        value={text}
        onChange={(event) => {
          // The request is sent before the text is rendered.
          if (event.target.value !== sentQuery.current) typeAhead.offer(event.target.value)
          setText(event.target.value)
          setCursor(event.target.selectionStart ?? event.target.value.length)
          setIsOpen(true)
          setActive(-1)
        }}
        onSelect={(event) => setCursor(event.currentTarget.selectionStart ?? 0)}
        onScroll={syncScroll}
        onKeyDown={handleKey}
        onBlur={() => setIsOpen(false)}
      />
      <kbd aria-hidden="true">/</kbd>
      <ul id={list} role="listbox" aria-label={t.suggestions} hidden={items.length === 0 && suggestionNotices.length === 0}>
        {items.map((item, nth) => (
          <ListOption key={item.text} id={`${list}-${nth}`} selected={nth === active} onClick={() => applyItem(item)}>
            <Query text={item.text} />
            <span>{item.about}</span>
            {item.count !== undefined && <b>{item.count.toLocaleString(t.locale)}</b>}
          </ListOption>
        ))}
        {suggestionNotices.map((notice) => (
          <li key={notice} role="presentation" className="range">
            {notice}
          </li>
        ))}
        {suggestions?.range && text !== '' && (
          <li role="presentation" className="range">
            {t.between(...suggestions.range)}
          </li>
        )}
      </ul>
    </SearchForm>
  )
}
