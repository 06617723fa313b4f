import { useNavigate } from '@tanstack/react-router'
import { useEffect, useRef, useState } from 'react'

/** The one box. `/` focuses it from anywhere, Enter searches, Escape leaves it. Typing on the search page searches live. */
export function SearchBox({ value, live, autoFocus }: { value: string; live?: boolean; autoFocus?: boolean }) {
  const [text, setText] = useState(value)
  const box = useRef<HTMLInputElement>(null)
  const navigate = useNavigate()

  useEffect(() => setText(value), [value])

  useEffect(() => {
    const focus = (event: KeyboardEvent) => {
      const typing = event.target instanceof HTMLElement && /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)
      const palette = event.key === 'k' && (event.metaKey || event.ctrlKey)
      if ((event.key === '/' && !typing) || palette) {
        event.preventDefault()
        box.current?.focus()
        box.current?.select()
      }
    }
    window.addEventListener('keydown', focus)
    return () => window.removeEventListener('keydown', focus)
  }, [])

  useEffect(() => {
    if (!live || text === value) return
    const timer = setTimeout(() => void navigate({ to: '/search', search: { q: text }, replace: true }), 150)
    return () => clearTimeout(timer)
  }, [live, text, value, navigate])

  return (
    <form
      role="search"
      className="searchbox"
      onSubmit={(event) => {
        event.preventDefault()
        void navigate({ to: '/search', search: { q: text } })
      }}
    >
      <input
        ref={box}
        type="search"
        aria-label="Search all clusters"
        placeholder="kind:pod status:CrashLoopBackOff region:eu-* nginx:1.27"
        spellCheck={false}
        autoComplete="off"
        autoFocus={autoFocus}
        value={text}
        onChange={(event) => setText(event.target.value)}
        onKeyDown={(event) => {
          if (event.key === 'Escape') event.currentTarget.blur()
        }}
      />
      <kbd aria-hidden="true">/</kbd>
    </form>
  )
}
